// node web_threads.mjs NETWORK.js THREADS RUNS: what several threads say, beside one and beside what may not be.
import { setTimeout } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const { load } = await import(pathToFileURL(process.argv[2]));
const [most, runs] = process.argv.slice(3).map(Number);
const isolated = (value) => Object.defineProperty(globalThis, "crossOriginIsolated", { value, configurable: true });
const said = {};

const thrown = async (call) => {
  try {
    return await call();
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
};

const alone = await load({ threads: 1 });
const inputs = Object.fromEntries(alone.inputs.map(({ name, shape }, at) => {
  const count = shape.reduce((a, b) => a * b, 1);
  return [name, Float32Array.from({ length: count }, (_, i) => Math.sin(i + at))];
}));
const bits = (net) => Object.values(net.run(inputs)).map((array) => Buffer.from(array.buffer).toString("base64")).join();
const wanted = bits(alone);

async function tried(options) {
  const net = await load(options);
  let same = 0;
  for (let run = 0; run < runs; ++run) same += bits(net) === wanted;
  return { net, threads: net.threads, same };
}

said.few = alone.threads;
said.ways = [];
for (let threads = 2; threads <= most; ++threads) {
  const { net, ...way } = await tried({ threads });
  said.ways.push(way);
  net.close();
}
const wait = Atomics.wait;
Atomics.wait = () => { throw new TypeError("not in this thread"); };
const awake = await tried({ threads: most });
Atomics.wait = wait;
said.awake = awake.same;
const beside = await tried();
said.beside = [beside.threads, beside.same];
said.together = bits(beside.net) === bits(awake.net);
const before = process.cpuUsage();
await setTimeout(400);
const { user, system } = process.cpuUsage(before);
said.idle = (user + system) / 1e6;

awake.net.close();
awake.net.close();
said.refused = [
  await thrown(() => awake.net.run(inputs)),
  await thrown(() => load({ threads: 0 })),
  await thrown(() => load({ threads: most + 1 })),
  await thrown(() => load({ threads: "2" })),
  await thrown(() => load({ threads: Symbol("two") })),
  await thrown(() => load({ thread: 2 })),
];
isolated(false);
said.refused.push(await thrown(() => load({ threads: 2 })));
const page = await tried();
said.page = [page.threads, page.same];
isolated(true);
said.isolated = await thrown(async () => (await load({ threads: 2 })).threads);
console.log(JSON.stringify(said)); // and ends, though workers wait
