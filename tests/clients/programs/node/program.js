// kafkajs behind the common command line of the client programs.
'use strict'

const fs = require('fs')
const { Kafka, PartitionAssigners, logLevel } = require('kafkajs')
const codecs = require('./codecs')
const { adminSteps } = require('./admin')

const JOIN_TIMEOUT_MS = 60_000
const PROGRESS_EVERY = 20
// By default it gives up on a leader that moves after 8 s.
const PATIENT = { retries: 60, initialRetryTime: 100, maxRetryTime: 1000 }

class Unsupported extends Error {}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const unpack = (text) => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
const pack = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
const say = (message) => fs.writeSync(1, JSON.stringify(message) + '\n')

async function waitFor(what, condition, timeoutMs = JOIN_TIMEOUT_MS) {
  const until = Date.now() + timeoutMs
  while (!condition()) {
    if (Date.now() > until) throw new Error(`waited ${timeoutMs / 1000} s for: ${what}`)
    await sleep(20)
  }
}

function clientOf(request) {
  return new Kafka({
    clientId: 'program',
    brokers: request.bootstrap.split(','),
    logLevel: logLevel.ERROR,
    logCreator: () => ({ namespace, log }) => process.stderr.write(`${namespace} ${log.message} ${log.error || ''}\n`),
    retry: PATIENT,
  })
}

function version() {
  return { client: 'kafkajs', version: require('kafkajs/package.json').version }
}

// Headers are an object: a name that comes twice has a list of values.
function messageOf(record, partition) {
  const headers = {}
  for (const [name, value] of record.headers || []) {
    const data = unpack(value)
    headers[name] = name in headers ? [].concat(headers[name], [data]) : data
  }
  const message = { key: unpack(record.key), value: unpack(record.value), headers, partition }
  if (record.timestamp !== null && record.timestamp !== undefined) message.timestamp = String(record.timestamp)
  return message
}

async function produce(request) {
  const { args } = request
  const acks = { all: -1, 1: 1, 0: 0 }[args.acks || 'all']
  const producer = clientOf(request).producer({
    idempotent: Boolean(args.idempotent),
    maxInFlightRequests: args.idempotent ? 1 : null,
    retry: PATIENT,
  })
  await producer.connect()
  const offsets = []
  for (const batch of args.batches) {
    const send = (messages) =>
      producer.send({ topic: request.topic, acks, compression: codecs[batch.codec || 'none'], messages })
    const note = (told, index) =>
      offsets.push([batch.partition, acks === 0 ? -1 : Number(told[0].baseOffset) + index])
    const messages = batch.records.map((record) => messageOf(record, batch.partition))
    if (args.pause_ms) {
      for (const message of messages) {
        note(await send([message]), 0)
        await sleep(args.pause_ms)
      }
    } else {
      const told = await send(messages)
      messages.forEach((_, index) => note(told, index))
    }
  }
  await producer.disconnect()
  return { offsets }
}

function read(topic, partition, message) {
  const headers = []
  for (const [name, value] of Object.entries(message.headers || {})) {
    for (const one of Array.isArray(value) ? value : [value]) headers.push([name, pack(one)])
  }
  return {
    topic,
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: pack(message.key),
    value: pack(message.value),
    headers,
  }
}

const inOrder = (records) => ({
  records: records.sort(
    (a, b) => (a.topic < b.topic ? -1 : a.topic > b.topic ? 1 : a.partition - b.partition || a.offset - b.offset),
  ),
})

// kafkajs reads in groups only: a group of its own, positioned before the first fetch.
async function reading(request, positions) {
  const kafka = clientOf(request)
  const topics = request.args.topics || [request.topic]
  const consumer = kafka.consumer({ groupId: `reader-${process.pid}-${Date.now()}`, maxWaitTimeInMs: 200 })
  const records = []
  await consumer.connect()
  await consumer.subscribe({ topics, fromBeginning: true })
  const admin = kafka.admin()
  await admin.connect()
  const starts = positions ? await Promise.all(topics.map((topic) => positions(admin, topic))) : []
  await admin.disconnect()
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      records.push(read(topic, partition, message))
    },
  })
  topics.forEach((topic, index) => {
    for (const { partition, offset } of starts[index] || []) consumer.seek({ topic, partition, offset })
  })
  return { consumer, records }
}

const timeoutOf = (request) => request.args.timeout_ms || 30_000

async function consume(request) {
  const at = (request.args.start || {}).timestamp
  const positions = at && ((admin, topic) => admin.fetchTopicOffsetsByTimestamp(topic, at))
  const { consumer, records } = await reading(request, positions)
  await waitFor('the records', () => records.length >= request.args.count, timeoutOf(request)).catch(() => {})
  await consumer.disconnect()
  return inOrder(records)
}

async function tail(request) {
  const ends = async (admin, topic) =>
    (await admin.fetchTopicOffsets(topic)).map(({ partition, high }) => ({ partition, offset: high }))
  const { consumer, records } = await reading(request, ends)
  request.args.batches = [{ partition: 0, records: request.args.records }]
  await produce(request)
  await waitFor('the new records', () => records.length >= request.args.records.length, timeoutOf(request))
  await consumer.disconnect()
  return inOrder(records)
}

class Member {
  constructor(request, onRecord) {
    const { args } = request
    if ((args.protocol || 'classic') !== 'classic') throw new Unsupported('kafkajs has no KIP-848 groups')
    if (args.static) throw new Unsupported('kafkajs has no static members')
    if (args.assignor && args.assignor !== 'roundrobin') throw new Unsupported(`kafkajs has no assignor ${args.assignor}`)
    this.owned = []
    this.request = request
    this.onRecord = onRecord
    this.consumer = clientOf(request).consumer({
      groupId: args.group,
      partitionAssigners: [PartitionAssigners.roundRobin],
      sessionTimeout: 10_000,
      heartbeatInterval: 400,
      maxWaitTimeInMs: 200,
      retry: PATIENT,
    })
    this.consumer.on('consumer.group_join', ({ payload }) => {
      this.owned = (payload.memberAssignment[request.topic] || []).slice().sort((a, b) => a - b)
    })
    this.consumer.on('consumer.rebalancing', () => {
      this.owned = []
    })
  }

  async start() {
    await this.consumer.connect()
    await this.consumer.subscribe({ topics: [this.request.topic], fromBeginning: true })
    await this.consumer.run({
      autoCommitInterval: 500,
      eachMessage: async ({ message }) => this.onRecord(message.value),
    })
    return this
  }

  async close() {
    await this.consumer.disconnect()
  }
}

async function rebalance(request) {
  const count = request.args.partitions
  const first = await new Member(request, () => {}).start()
  await waitFor('the first member to own every partition', () => first.owned.length === count)
  const alone = first.owned
  const second = await new Member(request, () => {}).start()
  await waitFor('two members to share the partitions', () => {
    const all = [...first.owned, ...second.owned]
    return first.owned.length && second.owned.length && all.length === count && new Set(all).size === count
  })
  const together = [first.owned, second.owned].sort((a, b) => a[0] - b[0])
  await second.close()
  await waitFor('the first member to own everything again', () => first.owned.length === count)
  const after = first.owned
  await first.close()
  return { alone, together, lost: null, after }
}

async function resume(request) {
  const { args } = request
  if ((args.protocol || 'classic') !== 'classic') throw new Unsupported('kafkajs has no KIP-848 groups')
  const kafka = clientOf(request)
  const take = async (count) => {
    const consumer = kafka.consumer({ groupId: args.group, maxWaitTimeInMs: 200 })
    const offsets = []
    await consumer.connect()
    await consumer.subscribe({ topics: [request.topic], fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        if (offsets.length >= count) return
        offsets.push(Number(message.offset))
        await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }])
      },
    })
    await waitFor('the records', () => offsets.length >= count, timeoutOf(request)).catch(() => {})
    await consumer.disconnect()
    return offsets
  }
  const committed = async () => {
    const admin = kafka.admin()
    await admin.connect()
    const [found] = await admin.fetchOffsets({ groupId: args.group, topics: [request.topic] })
    await admin.disconnect()
    return Number(found.partitions[0].offset)
  }
  const first = await take(args.first)
  const between = await committed()
  const second = await take(args.total - args.first)
  return { first, committed: between, second, committed_after: await committed() }
}

async function soak(request) {
  const { args } = request
  const acked = new Set()
  const seen = new Set()
  const failed = {}
  const member = await new Member(request, (value) => seen.add(String(value))).start()
  const producer = clientOf(request).producer({ idempotent: true, maxInFlightRequests: 1, retry: PATIENT })
  await producer.connect()
  // Two sends at once have no order, so the next of a partition waits for the one before.
  const lines = Array.from({ length: args.partitions }, () => Promise.resolve())
  const send = async (partition, value) => {
    try {
      await producer.send({ topic: request.topic, acks: -1, messages: [{ partition, value }] })
      acked.add(value)
      if (acked.size % PROGRESS_EVERY === 0) say({ progress: acked.size })
    } catch (error) {
      failed[error.message] = (failed[error.message] || 0) + 1
    }
  }
  for (let number = 0; number < args.count; number++) {
    const partition = number % args.partitions
    lines[partition] = lines[partition].then(() => send(partition, String(number)))
    await sleep(1000 / args.rate_per_s)
  }
  await Promise.all(lines)
  const missing = () => [...acked].filter((value) => !seen.has(value)).length
  await waitFor('every record', () => missing() === 0, timeoutOf(request)).catch(() => {})
  if (missing() === 0) await member.close()
  return { acked: acked.size, failed, missing: missing() }
}

const scenarios = {
  version,
  produce,
  consume,
  tail,
  rebalance,
  resume,
  soak,
  admin: async (request) => adminSteps(clientOf(request), request.args.steps),
}

async function main() {
  const options = {}
  for (let i = 3; i + 1 < process.argv.length; i += 2) options[process.argv[i]] = process.argv[i + 1]
  const text = options['--json-args'] || '{}'
  const args = JSON.parse(text.startsWith('@') ? fs.readFileSync(text.slice(1), 'utf8') : text)
  const request = { bootstrap: options['--bootstrap'], topic: options['--topic'], args }
  let answer
  try {
    const scenario = scenarios[process.argv[2]]
    if (!scenario) throw new Unsupported(`no scenario ${process.argv[2]}`)
    answer = { result: await scenario(request) }
  } catch (error) {
    process.stderr.write(`${error.stack}\n`)
    answer = error instanceof Unsupported ? { unsupported: error.message } : { error: `${error.name}: ${error.message}` }
  }
  say(answer)
  process.exit(0)
}

main()
