// node web_times.mjs NPM JOBS.json: times models of ours in turns with onnxruntime-web and TensorFlow.js.
//
// NPM is a directory with their node_modules, JOBS a list of { name, script, onnx }. A line of JSON for each
// model: milliseconds of processor time a run by library, in the order of the rounds, and how far results are apart.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [npm, jobs, rounds] = process.argv.slice(2);
const WARM_MS = 400, LEAST = 3;
const require = createRequire(`${npm}/`);
const ort = require("onnxruntime-web/wasm");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

function drawn(port) {
  const count = port.shape.reduce((a, b) => a * b, 1);
  if (port.dtype === "int64") return BigInt64Array.from({ length: count }, (_, i) => BigInt(i % 4));
  return Float32Array.from({ length: count }, (_, i) => Math.sin(i + 1));
}

async function peer(file, net, inputs) {
  const session = await ort.InferenceSession.create(readFileSync(file), { executionProviders: ["wasm"], graphOptimizationLevel: "all", logSeverityLevel: 3 });
  const feeds = Object.fromEntries(net.inputs.map((port) => [port.name, new ort.Tensor(port.dtype, inputs[port.name], port.shape)]));
  return () => session.run(feeds);
}

/* MobileNetV2 of TensorFlow.js, in NHWC, with random weights: 32-16 channels, then (t, c, n, s). */
async function tensorflow() {
  const tf = require("@tensorflow/tfjs");
  require("@tensorflow/tfjs-backend-wasm");
  await tf.setBackend("wasm");
  const act = (x) => tf.layers.reLU({ maxValue: 6 }).apply(x);
  const conv = (x, filters, kernelSize = 1, strides = 1) => tf.layers.conv2d({ filters, kernelSize, strides, padding: "same" }).apply(x);
  const depthwise = (x, strides) => tf.layers.depthwiseConv2d({ kernelSize: 3, strides, padding: "same" }).apply(x);
  const input = tf.input({ shape: [224, 224, 3] });
  let x = act(conv(input, 32, 3, 2)), channels = 32;
  for (const [t, c, n, s] of [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]])
    for (let i = 0; i < n; ++i) {
      const stride = i ? 1 : s;
      let y = t === 1 ? x : act(conv(x, t * channels));
      y = conv(act(depthwise(y, stride)), c);
      x = stride === 1 && channels === c ? tf.layers.add().apply([x, y]) : y;
      channels = c;
    }
  x = tf.layers.globalAveragePooling2d({}).apply(act(conv(x, 1280)));
  const model = tf.model({ inputs: input, outputs: tf.layers.dense({ units: 1000 }).apply(x) });
  const image = tf.randomUniform([1, 224, 224, 3]);
  return async () => {
    const result = model.predict(image);
    await result.data();
    result.dispose();
  };
}

/* Processor time, which other work on the machine disturbs least: all of them run on this thread. */
async function timed(run) {
  const start = process.cpuUsage();
  await run();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000;
}

async function warm(run) {
  const start = performance.now();
  for (let at = 0; at < LEAST || performance.now() - start < WARM_MS; ++at) await run();
}

function difference(ours, theirs) {
  let most = 0, largest = 1;
  for (const [name, array] of Object.entries(ours)) {
    const other = theirs[name].data;
    for (let i = 0; i < array.length; ++i) {
      most = Math.max(most, Math.abs(Number(array[i]) - Number(other[i])));
      largest = Math.max(largest, Math.abs(Number(other[i])));
    }
  }
  return most / largest;
}

for (const { name, script, onnx } of JSON.parse(readFileSync(jobs, "utf8"))) {
  const { load } = await import(pathToFileURL(script));
  const net = await load();
  const inputs = Object.fromEntries(net.inputs.map((port) => [port.name, drawn(port)]));
  const runs = { polysci: () => net.run(inputs), "onnxruntime-web": await peer(onnx, net, inputs) };
  const apart = difference(runs.polysci(), await runs["onnxruntime-web"]());
  if (name === "mobilenet_v2") runs.tfjs = await tensorflow();
  const times = Object.fromEntries(Object.keys(runs).map((key) => [key, []]));
  for (const run of Object.values(runs)) await warm(run);
  for (let round = 0; round < Number(rounds); ++round)
    for (const [key, run] of Object.entries(runs)) times[key].push(await timed(run));
  console.log(JSON.stringify({ name, times, apart }));
}
