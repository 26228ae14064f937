// A redis-streams-broker worker beside a reaper.
// REDIS_URL=… node redis_streams_broker_worker.js produce 10 | work <consumer>
const Redis = require("ioredis");
const { StreamChannelBroker } = require("redis-streams-broker");
const [mode, name] = process.argv.slice(2);
const client = new Redis(process.env.REDIS_URL);
const broker = new StreamChannelBroker(client, "orders");

async function produce() {
  for (let number = 0; number < Number(name); number++)
    await broker.publish({ number: String(number) }, -1); // by default all but about a hundred jobs are trimmed
  client.disconnect();
}

async function handler(jobs) {
  for (const job of jobs) {
    const number = job.payload.number;
    console.log("start", number);
    if (number === process.env.HOLD) await new Promise(() => {});
    console.log("done", number);
    await job.markAsRead(); // XACK, after the work; what fails is not acknowledged
  }
}

async function work() {
  const group = await broker.joinConsumerGroup("billing", "0"); // by default a new group begins at the stream's end
  await group.subscribe(name, handler, 1000, 1); // one at a time
}

mode === "produce" ? produce() : work();
