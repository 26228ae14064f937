// A node-redis worker beside a reaper.
// REDIS_URL=… node node_redis_worker.js produce 10 | work <consumer>
const { createClient } = require("redis");
const [mode, name] = process.argv.slice(2);
const client = createClient({ url: process.env.REDIS_URL });

async function produce() {
  for (let number = 0; number < Number(name); number++) await client.xAdd("orders", "*", { number: String(number) });
  await client.close();
}

async function work() {
  for (;;) {
    const found = await client.xReadGroup("billing", name, { key: "orders", id: ">" }, { COUNT: 1, BLOCK: 1000 });
    for (const { messages } of found ?? [])
      for (const { id, message } of messages) {
        console.log("start", message.number);
        if (message.number === process.env.HOLD) await new Promise(() => {});
        console.log("done", message.number);
        await client.xAck("orders", "billing", id); // after the work; what fails is not acknowledged
      }
  }
}

client.connect().then(mode === "produce" ? produce : work);
