// A worker in another language that has never heard of stream-reaper: Node and its `net` module, nothing else.
// node bare_worker.js <port> <stream> <group> <consumer>
const [port, stream, group, consumer] = process.argv.slice(2);
const socket = require("net").connect(Number(port), "127.0.0.1");
// Where jobs are given back in place (Redis 8.4): CLAIM_MS=1000000000 reads what was given back together with what is new.
const claim = process.env.CLAIM_MS ? ["CLAIM", process.env.CLAIM_MS] : [];
const waiting = []; // who waits for the next replies, in order
let received = Buffer.alloc(0);

function parse(at) { // one RESP reply: { value, next }, or undefined while part of it has not arrived
  const end = received.indexOf("\r\n", at) + 2;
  if (end < 2) return undefined;
  const kind = received.toString("latin1", at, at + 1), text = received.toString("latin1", at + 1, end - 2);
  if (kind === "-") return { value: new Error(text), next: end };
  if (kind === "+" || kind === ":" || text === "-1") return { value: text === "-1" ? null : text, next: end };
  const size = Number(text);
  if (kind === "$")
    return received.length < end + size + 2 ? undefined : { value: received.subarray(end, end + size), next: end + size + 2 };
  const value = [];
  let next = end;
  while (value.length < size) {
    const item = parse(next);
    if (!item) return undefined;
    value.push(item.value);
    next = item.next;
  }
  return { value, next };
}

socket.on("data", (chunk) => {
  received = Buffer.concat([received, chunk]);
  for (let reply = parse(0); reply; reply = parse(0)) {
    received = Buffer.from(received.subarray(reply.next)); // a copy: the values stay as they are
    const { resolve, reject } = waiting.shift();
    reply.value instanceof Error ? reject(reply.value) : resolve(reply.value);
  }
});
const send = (...words) => new Promise((resolve, reject) => {
  waiting.push({ resolve, reject });
  socket.write(`*${words.length}\r\n` + words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`).join(""));
});
const say = (what, ...facts) => console.log(what, ...facts.map(String));

async function work(id, job) {
  const digest = require("crypto").createHash("sha256").update(job.get("payload")).digest("hex");
  say("start", job.get("n"), id, process.pid, Date.now() / 1000, digest);
  await new Promise((resolve) => setTimeout(resolve, Number(job.get("duration_ms"))));
  say("done", job.get("n"), id, process.pid, Date.now() / 1000);
}

(async () => {
  for (;;) {
    const reply = await send("XREADGROUP", "GROUP", group, consumer, "COUNT", "1", "BLOCK", "1000", ...claim,
      "STREAMS", stream, ">");
    for (const [, entries] of reply ?? [])
      for (const [id, fields, idle, deliveries] of entries) {
        if (Number(idle) < 0) { // the server's clock was set back, and this is in somebody's hands
          await send("XCLAIM", stream, group, "returned-by-reaper", "0", id.toString(), "RETRYCOUNT", deliveries, "JUSTID");
          continue;
        }
        const job = new Map();
        for (let i = 0; i < fields.length; i += 2) job.set(fields[i].toString(), fields[i + 1]);
        await work(id, job);
        await send("XACK", stream, group, id.toString());
      }
  }
})();
