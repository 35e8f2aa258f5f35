// node web_faults.mjs NETWORK.js THREADS: what runs say when a thread fails. Of the first number of x, -1000 has the
// thread that calls trap, 1000 the first worker, 2000 the second.
import { setTimeout } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const { load } = await import(pathToFileURL(process.argv[2]));
const most = Number(process.argv[3]);
const said = [];

const thrown = (call) => {
  try {
    return call();
  } catch (error) {
    return `${error.message}`;
  }
};

async function tried(threads, first) {
  const net = await load({ threads });
  const x = new Float32Array(net.inputs[0].shape.reduce((a, b) => a * b, 1));
  const run = () => Object.keys(net.run({ [net.inputs[0].name]: x })).length > 0;
  const told = [thrown(run)];
  x[0] = first;
  told.push(thrown(run));
  x[0] = 0;
  told.push(thrown(run));
  await setTimeout(20); // of workers that end
  told.push(thrown(run));
  net.close();
  said.push({ threads, first, told });
}

for (let threads = 1; threads <= most; ++threads)
  for (const first of [-1000, 1000, 2000].slice(0, threads)) await tried(threads, first);
const wait = Atomics.wait;
Atomics.wait = () => { throw new TypeError("not in this thread"); };
await tried(most, 1000);
Atomics.wait = wait;
console.log(JSON.stringify(said));
