// An ioredis worker beside a reaper.
// REDIS_URL=… node ioredis_worker.js produce 10 | work <consumer>
const Redis = require("ioredis");
const [mode, name] = process.argv.slice(2);
const client = new Redis(process.env.REDIS_URL);

async function produce() {
  for (let number = 0; number < Number(name); number++) await client.xadd("orders", "*", "number", number);
  client.disconnect();
}

async function work() {
  for (;;) {
    const found = await client.xreadgroup(
      "GROUP", "billing", name, "COUNT", 1, "BLOCK", 1000, "STREAMS", "orders", ">");
    for (const [, entries] of found ?? [])
      for (const [id, fields] of entries) {
        const number = fields[fields.indexOf("number") + 1];
        console.log("start", number);
        if (number === process.env.HOLD) await new Promise(() => {});
        console.log("done", number);
        await client.xack("orders", "billing", id); // after the work; what fails is not acknowledged
      }
  }
}

mode === "produce" ? produce() : work();
