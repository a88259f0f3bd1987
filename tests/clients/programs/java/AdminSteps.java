import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** What Kafka's Java admin client is asked for, one step after another. */
final class AdminSteps {
    private final String bootstrap;
    private final Admin admin;

    private AdminSteps(String bootstrap, Admin admin) {
        this.bootstrap = bootstrap;
        this.admin = admin;
    }

    static Object run(String bootstrap, JsonNode steps) {
        List<Map<String, Object>> results = new ArrayList<>();
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap))) {
            AdminSteps actions = new AdminSteps(bootstrap, admin);
            for (JsonNode step : steps) {
                Map<String, Object> result = new HashMap<>();
                try {
                    result.put("ok", actions.perform(step));
                } catch (Program.Unsupported why) {
                    result.put("unsupported", true);
                } catch (Exception error) {
                    System.err.println(step + ": " + error);
                    Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                    short code = Errors.forException(cause).code();
                    result.put("error", code == -1 ? cause.getClass().getSimpleName() : code);
                }
                results.add(result);
            }
        }
        return results;
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(60, TimeUnit.SECONDS);
    }

    private static Set<String> startingWith(String prefix, Collection<String> names) {
        Set<String> found = new TreeSet<>(names);
        found.removeIf(name -> !name.startsWith(prefix));
        return found;
    }

    private Object perform(JsonNode step) throws Exception {
        String topic = step.path("topic").asText();
        String group = step.path("group").asText();
        String prefix = step.path("prefix").asText();
        TopicPartition here = new TopicPartition(topic, step.path("partition").asInt());
        switch (step.get("do").asText()) {
            case "create_topic":
                Map<String, String> configs = new HashMap<>();
                step.path("configs").properties().forEach(each -> configs.put(each.getKey(), each.getValue().asText()));
                NewTopic wanted = new NewTopic(topic, Optional.of(step.get("partitions").asInt()), Optional.empty());
                get(admin.createTopics(List.of(wanted.configs(configs))).all());
                return null;
            case "list_topics":
                return startingWith(prefix, get(admin.listTopics().names()));
            case "describe_topic":
                return describeTopic(topic);
            case "grow":
                get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(step.get("total").asInt()))).all());
                return null;
            case "describe_configs":
                return describeConfigs(topic, step.get("keys"));
            case "alter_configs":
                alterConfigs(topic, step);
                return null;
            case "list_offsets":
                return get(admin.listOffsets(Map.of(here, offsetSpec(step.get("at")))).all()).get(here).offset();
            case "delete_records":
                RecordsToDelete before = RecordsToDelete.beforeOffset(step.get("before").asLong());
                return get(admin.deleteRecords(Map.of(here, before)).lowWatermarks().get(here)).lowWatermark();
            case "list_groups":
                Collection<GroupListing> groups = get(admin.listGroups(ListGroupsOptions.forConsumerGroups()).all());
                return startingWith(prefix, groups.stream().map(GroupListing::groupId).toList());
            case "describe_group":
                ConsumerGroupDescription found = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
                return Map.of("state", found.groupState().toString(), "members", found.members().size());
            case "group_offsets":
                Map<String, Long> offsets = new TreeMap<>();
                get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).forEach(
                        (partition, at) -> offsets.put(partition.topic() + "/" + partition.partition(), at.offset()));
                return offsets;
            case "alter_group_offsets":
                OffsetAndMetadata at = new OffsetAndMetadata(step.get("offset").asLong());
                get(admin.alterConsumerGroupOffsets(group, Map.of(here, at)).all());
                return null;
            case "delete_group_offsets":
                get(admin.deleteConsumerGroupOffsets(group, Set.of(here)).all());
                return null;
            case "delete_group":
                get(admin.deleteConsumerGroups(List.of(group)).all());
                return null;
            case "delete_topic":
                get(admin.deleteTopics(List.of(topic)).all());
                return null;
            case "describe_cluster":
                var cluster = admin.describeCluster();
                return Map.of("brokers", get(cluster.nodes()).size(), "controller", get(cluster.controller()).id() >= 0);
            case "commit":
                commit(group, here, step.get("offset").asLong());
                return null;
            default:
                throw new Program.Unsupported("no such step");
        }
    }

    private Object describeTopic(String topic) throws Exception {
        TopicDescription found = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
        return Map.of(
                "partitions", found.partitions().stream().map(each -> each.partition()).sorted().toList(),
                "led", found.partitions().stream().allMatch(each -> each.leader() != null && each.leader().id() >= 0),
                "in_sync", found.partitions().stream().noneMatch(each -> each.isr().isEmpty()));
    }

    private Object describeConfigs(String topic, JsonNode keys) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config found = get(admin.describeConfigs(List.of(resource)).all()).get(resource);
        Map<String, String> values = new TreeMap<>();
        for (JsonNode key : keys) {
            ConfigEntry entry = found.get(key.asText());
            values.put(key.asText(), entry == null ? null : entry.value());
        }
        return values;
    }

    private void alterConfigs(String topic, JsonNode step) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        step.path("set").properties().forEach(each -> changes.add(new AlterConfigOp(
                new ConfigEntry(each.getKey(), each.getValue().asText()), AlterConfigOp.OpType.SET)));
        step.path("delete").forEach(name -> changes.add(new AlterConfigOp(
                new ConfigEntry(name.asText(), null), AlterConfigOp.OpType.DELETE)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        get(admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
    }

    private static OffsetSpec offsetSpec(JsonNode at) {
        switch (at.asText()) {
            case "earliest":
                return OffsetSpec.earliest();
            case "latest":
                return OffsetSpec.latest();
            case "max_timestamp":
                return OffsetSpec.maxTimestamp();
            default:
                return OffsetSpec.forTimestamp(at.asLong());
        }
    }

    private void commit(String group, TopicPartition here, long offset) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", false);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            consumer.assign(List.of(here));
            consumer.commitSync(Map.of(here, new OffsetAndMetadata(offset)));
        }
    }
}
