// What kafkajs's admin client is asked for, one step after another.
'use strict'

const { ConfigResourceTypes } = require('kafkajs')

const startingWith = (prefix, names) => names.filter((name) => name.startsWith(prefix)).sort()

function actions(kafka, admin) {
  return {
    create_topic: ({ topic, partitions, configs }) =>
      admin.createTopics({
        topics: [
          {
            topic,
            numPartitions: partitions,
            configEntries: Object.entries(configs || {}).map(([name, value]) => ({ name, value })),
          },
        ],
      }),
    list_topics: async ({ prefix }) => startingWith(prefix, await admin.listTopics()),
    describe_topic: async ({ topic }) => {
      const [found] = (await admin.fetchTopicMetadata({ topics: [topic] })).topics
      return {
        partitions: found.partitions.map((each) => each.partitionId).sort((a, b) => a - b),
        led: found.partitions.every((each) => each.leader >= 0),
        in_sync: found.partitions.every((each) => each.isr.length > 0),
      }
    },
    grow: async ({ topic, total }) => {
      await admin.createPartitions({ topicPartitions: [{ topic, count: total }] })
    },
    describe_configs: async ({ topic, keys }) => {
      const asked = { type: ConfigResourceTypes.TOPIC, name: topic, configNames: keys }
      const [told] = (await admin.describeConfigs({ resources: [asked], includeSynonyms: false })).resources
      const found = Object.fromEntries(told.configEntries.map((entry) => [entry.configName, entry.configValue]))
      return Object.fromEntries(keys.map((key) => [key, key in found ? found[key] : null]))
    },
    // It has only the older call, which replaces all that was set before.
    alter_configs: async ({ topic, set }) => {
      const configEntries = Object.entries(set || {}).map(([name, value]) => ({ name, value }))
      const asked = { type: ConfigResourceTypes.TOPIC, name: topic, configEntries }
      await admin.alterConfigs({ validateOnly: false, resources: [asked] })
    },
    list_offsets: async ({ topic, partition, at }) => {
      if (at === 'max_timestamp') return undefined
      const named = at === 'earliest' || at === 'latest'
      const found = await (named ? admin.fetchTopicOffsets(topic) : admin.fetchTopicOffsetsByTimestamp(topic, at))
      const one = found.find((each) => each.partition === partition)
      return Number({ earliest: one.low, latest: one.high }[at] ?? one.offset)
    },
    delete_records: async ({ topic, partition, before }) => {
      await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
      return null // it does not tell the new start of the log
    },
    list_groups: async ({ prefix }) =>
      startingWith(prefix, (await admin.listGroups()).groups.map((each) => each.groupId)),
    describe_group: async ({ group }) => {
      const [found] = (await admin.describeGroups([group])).groups
      return { state: found.state, members: found.members.length }
    },
    group_offsets: async ({ group }) => {
      const offsets = {}
      for (const { topic, partitions } of await admin.fetchOffsets({ groupId: group })) {
        for (const each of partitions) offsets[`${topic}/${each.partition}`] = Number(each.offset)
      }
      return offsets
    },
    alter_group_offsets: async ({ group, topic, partition, offset }) => {
      await admin.setOffsets({ groupId: group, topic, partitions: [{ partition, offset: String(offset) }] })
    },
    delete_group: async ({ group }) => {
      await admin.deleteGroups([group])
    },
    delete_topic: async ({ topic }) => {
      await admin.deleteTopics({ topics: [topic] })
    },
    describe_cluster: async () => {
      const found = await admin.describeCluster()
      return { brokers: found.brokers.length, controller: found.controller >= 0 }
    },
    // A commit of its own consumer needs a running group; setOffsets is how kafkajs sets one from outside.
    commit: async ({ group, topic, partition, offset }) => {
      await admin.setOffsets({ groupId: group, topic, partitions: [{ partition, offset: String(offset) }] })
    },
  }
}

async function adminSteps(kafka, steps) {
  const admin = kafka.admin({ retry: { retries: 3 } })
  await admin.connect()
  const known = actions(kafka, admin)
  const results = []
  for (const step of steps) {
    if (!(step.do in known)) {
      results.push({ unsupported: true })
      continue
    }
    try {
      const result = await known[step.do](step)
      results.push(step.at === 'max_timestamp' ? { unsupported: true } : { ok: result === undefined ? null : result })
    } catch (error) {
      process.stderr.write(`${step.do} ${error.message}\n`)
      const inner = (error.errors && error.errors[0]) || (error.groups && error.groups[0]) || error
      results.push({ error: inner.code ?? inner.errorCode ?? inner.type ?? inner.name })
    }
  }
  await admin.disconnect()
  return results
}

module.exports = { adminSteps }
