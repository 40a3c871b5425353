// One job that does nothing for each message. Prints messages per second: added and processed at the same time, and processed
// only, with all of them added before.
//
//   node bench.mjs URL MESSAGES CHATS chats|one
//
// chats: a queue for each chat and a worker of concurrency 1 for each queue, so that the messages of a chat are handled one at a
// time and in order. one: one queue and one worker of concurrency CHATS, without any order within a chat.

import { Redis } from 'ioredis';
import { Queue, Worker } from 'bullmq';

const [url, messagesText, chatsText, kind] = process.argv.slice(2);
const messages = Number(messagesText);
const chats = Number(chatsText);
const perChat = kind === 'chats';
const names = perChat ? Array.from({ length: chats }, (_, chat) => `chat-${chat}`) : ['all'];
const options = { removeOnComplete: true, removeOnFail: true };

const connect = () => new Redis(url, { maxRetriesPerRequest: null });

async function measure(prefix, addedBefore) {
  const connection = connect();
  const queues = names.map((name) => new Queue(name, { connection, prefix }));
  const add = (message) =>
    queues[message % queues.length].add('message', { chat: message % chats, text: 'x'.repeat(200) }, options);

  // As many additions under way as chats.
  async function addAll() {
    let next = 0;
    const lane = async () => {
      while (next < messages) await add(next++);
    };
    await Promise.all(Array.from({ length: chats }, lane));
  }

  if (addedBefore) await addAll();
  let done = 0;
  let finished;
  const all = new Promise((resolve) => (finished = resolve));
  const handler = async () => {};
  const workers = names.map((name) => {
    const concurrency = perChat ? 1 : chats;
    const worker = new Worker(name, handler, { connection, prefix, concurrency, autorun: false });
    worker.on('completed', () => {
      done += 1;
      if (done === messages) finished();
    });
    worker.on('error', (error) => {
      console.error(`error: ${error.message}`);
      process.exit(1);
    });
    return worker;
  });
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  const begun = process.hrtime.bigint();
  for (const worker of workers) worker.run();
  if (!addedBefore) await addAll();
  await all;
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  await Promise.all(workers.map((worker) => worker.close()));
  await Promise.all(queues.map((queue) => queue.close()));
  connection.disconnect();
  return messages / seconds;
}

const both = await measure('bench-both', false);
const processed = await measure('bench-processed', true);
console.log(both.toFixed(0), processed.toFixed(0));
process.exit(0);
