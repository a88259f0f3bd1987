// sarama behind the common command line of the client programs.
package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	p "streamhouse/clients/protocol"
)

const timeout = 60 * time.Second

var codecs = map[string]sarama.CompressionCodec{
	"": sarama.CompressionNone, "none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

var strategies = map[string]func() sarama.BalanceStrategy{
	"": sarama.NewBalanceStrategyRange, "range": sarama.NewBalanceStrategyRange,
	"roundrobin":         sarama.NewBalanceStrategyRoundRobin,
	"cooperative-sticky": sarama.NewBalanceStrategyCooperativeSticky,
}

func version(*p.Request) (any, error) {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/IBM/sarama" {
			return map[string]string{"client": "sarama", "version": strings.TrimPrefix(module.Version, "v")}, nil
		}
	}
	return nil, errors.New("the build does not tell its modules")
}

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.Return.Successes = true
	made.Producer.Return.Errors = true
	made.Producer.Partitioner = sarama.NewManualPartitioner
	// By default it gives up on a leader that moves after 0.3 s.
	made.Producer.Retry.Max = 300
	made.Producer.Retry.Backoff = 200 * time.Millisecond
	made.Metadata.Retry.Max = 100
	made.Metadata.Retry.Backoff = 200 * time.Millisecond
	return made
}

func messageOf(topic string, partition int32, from p.Record) *sarama.ProducerMessage {
	message := &sarama.ProducerMessage{Topic: topic, Partition: partition}
	if from.Key != nil {
		message.Key = sarama.ByteEncoder(from.Key)
	}
	if from.Value != nil {
		message.Value = sarama.ByteEncoder(from.Value)
	}
	if from.Timestamp != nil {
		message.Timestamp = time.UnixMilli(*from.Timestamp)
	}
	for _, header := range from.Headers {
		message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
	}
	return message
}

func produce(request *p.Request) (any, error) {
	offsets := [][]int64{}
	for _, batch := range request.Args.Batches {
		settings := config()
		settings.Producer.Compression = codecs[batch.Codec]
		acks := map[string]sarama.RequiredAcks{"all": sarama.WaitForAll, "1": sarama.WaitForLocal, "0": sarama.NoResponse}
		settings.Producer.RequiredAcks = acks[request.Args.Acks]
		if request.Args.Idempotent {
			settings.Producer.Idempotent = true
			settings.Net.MaxOpenRequests = 1 // it insists
		}
		if request.Args.PauseMs == 0 {
			settings.Producer.Flush.Frequency = 20 * time.Millisecond
		}
		producer, err := sarama.NewAsyncProducer(request.Bootstrap, settings)
		if err != nil {
			return nil, err
		}
		sent := make([]*sarama.ProducerMessage, 0, len(batch.Records))
		var failed error
		// One for each record: a producer that is closed gives up what it still has to retry.
		var waiting sync.WaitGroup
		waiting.Add(len(batch.Records))
		go func() {
			for range producer.Successes() {
				waiting.Done()
			}
		}()
		go func() {
			for problem := range producer.Errors() {
				failed = problem.Err
				waiting.Done()
			}
		}()
		for _, from := range batch.Records {
			message := messageOf(request.Topic, batch.Partition, from)
			sent = append(sent, message)
			producer.Input() <- message
			time.Sleep(time.Duration(request.Args.PauseMs) * time.Millisecond)
		}
		waiting.Wait()
		producer.AsyncClose()
		if failed != nil {
			return nil, failed
		}
		for _, message := range sent {
			offset := message.Offset
			if request.Args.Acks == "0" {
				offset = -1
			}
			offsets = append(offsets, []int64{int64(message.Partition), offset})
		}
	}
	return map[string]any{"offsets": offsets}, nil
}

func read(message *sarama.ConsumerMessage) p.Record {
	at := message.Timestamp.UnixMilli()
	result := p.Record{
		Topic: message.Topic, Partition: message.Partition, Offset: message.Offset,
		Timestamp: &at, Key: message.Key, Value: message.Value,
	}
	for _, header := range message.Headers {
		result.Headers = append(result.Headers, p.Header{Name: string(header.Key), Value: header.Value})
	}
	return result
}

// readers starts one reader for each partition, at the offset that the function says; records arrive in the channel.
func readers(request *p.Request, at func(sarama.Client, string, int32) (int64, error)) (chan p.Record, func(), error) {
	settings := config()
	settings.Consumer.MaxWaitTime = 100 * time.Millisecond
	client, err := sarama.NewClient(request.Bootstrap, settings)
	if err != nil {
		return nil, nil, err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, nil, err
	}
	records := make(chan p.Record, 1000)
	for _, topic := range request.Topics() {
		partitions, err := client.Partitions(topic)
		if err != nil {
			return nil, nil, err
		}
		for _, partition := range partitions {
			offset, err := at(client, topic, partition)
			if err != nil {
				return nil, nil, err
			}
			reader, err := consumer.ConsumePartition(topic, partition, offset)
			if err != nil {
				return nil, nil, err
			}
			go func() {
				for message := range reader.Messages() {
					records <- read(message)
				}
			}()
		}
	}
	return records, func() { _ = client.Close() }, nil
}

func collect(records chan p.Record, count int, timeout time.Duration) []p.Record {
	found := []p.Record{}
	deadline := time.After(timeout)
	for len(found) < count {
		select {
		case record := <-records:
			found = append(found, record)
		case <-deadline:
			return found
		}
	}
	return found
}

func consume(request *p.Request) (any, error) {
	records, stop, err := readers(request, func(client sarama.Client, topic string, partition int32) (int64, error) {
		at, timed := request.StartTime()
		if !timed {
			return sarama.OffsetOldest, nil
		}
		offset, err := client.GetOffset(topic, partition, at)
		if offset < 0 {
			offset = sarama.OffsetNewest
		}
		return offset, err
	})
	if err != nil {
		return nil, err
	}
	defer stop()
	return p.InOrder(collect(records, request.Args.Count, request.Timeout())), nil
}

func tail(request *p.Request) (any, error) {
	records, stop, err := readers(request, func(sarama.Client, string, int32) (int64, error) {
		return sarama.OffsetNewest, nil
	})
	if err != nil {
		return nil, err
	}
	defer stop()
	request.Args.Batches = []p.Batch{{Records: request.Args.Records}}
	if _, err := produce(request); err != nil {
		return nil, err
	}
	return p.InOrder(collect(records, len(request.Args.Records), request.Timeout())), nil
}

type member struct {
	owned    *p.Owned
	group    sarama.ConsumerGroup
	onRecord func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage)
	cancel   context.CancelFunc
	done     chan struct{}
}

func (m *member) Owned() *p.Owned { return m.owned }

func (m *member) Setup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	// A claim ends when its partition is revoked, by an eager rebalance or by a cooperative one.
	m.owned.Add([]int32{claim.Partition()})
	defer m.owned.Remove([]int32{claim.Partition()})
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.onRecord(session, message)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) Close() {
	m.cancel()
	<-m.done
	_ = m.group.Close()
}

func groupConfig(request *p.Request, instance string) (*sarama.Config, error) {
	if request.Args.Protocol == "consumer" {
		return nil, p.Unsupported("sarama has no KIP-848 groups")
	}
	settings := config()
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	settings.Consumer.Offsets.AutoCommit.Interval = 500 * time.Millisecond
	settings.Consumer.MaxWaitTime = 100 * time.Millisecond
	settings.Consumer.Group.Session.Timeout = 10 * time.Second
	settings.Consumer.Group.Heartbeat.Interval = 400 * time.Millisecond
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[request.Args.Assignor]()}
	settings.Consumer.Group.Rebalance.Retry.Max = 100
	settings.Consumer.Group.InstanceId = instance
	return settings, nil
}

func start(
	request *p.Request, settings *sarama.Config, onRecord func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage),
) (*member, error) {
	group, err := sarama.NewConsumerGroup(request.Bootstrap, request.Args.Group, settings)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	made := &member{owned: p.NewOwned(), group: group, cancel: cancel, done: make(chan struct{}), onRecord: onRecord}
	go func() {
		defer close(made.done)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{request.Topic}, made); err != nil {
				time.Sleep(200 * time.Millisecond)
			}
		}
	}()
	return made, nil
}

func newMember(request *p.Request) p.MakeMember {
	return func(instance string, onRecord func([]byte)) (p.Member, error) {
		settings, err := groupConfig(request, instance)
		if err != nil {
			return nil, err
		}
		return start(request, settings, func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
			onRecord(message.Value)
			session.MarkMessage(message, "")
		})
	}
}

func resume(request *p.Request) (any, error) {
	settings, err := groupConfig(request, "")
	if err != nil {
		return nil, err
	}
	settings.Consumer.Offsets.AutoCommit.Enable = false
	take := func(count int) ([]int64, error) {
		var lock sync.Mutex
		offsets, full := []int64{}, make(chan struct{})
		made, err := start(request, settings, func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
			lock.Lock()
			defer lock.Unlock()
			if len(offsets) >= count {
				return
			}
			offsets = append(offsets, message.Offset)
			session.MarkMessage(message, "")
			session.Commit()
			if len(offsets) == count {
				close(full)
			}
		})
		if err != nil {
			return nil, err
		}
		select {
		case <-full:
		case <-time.After(request.Timeout()):
		}
		made.Close()
		return offsets, nil
	}
	committed := func() (any, error) {
		admin, err := sarama.NewClusterAdmin(request.Bootstrap, config())
		if err != nil {
			return nil, err
		}
		defer admin.Close()
		found, err := admin.ListConsumerGroupOffsets(request.Args.Group, map[string][]int32{request.Topic: {0}})
		if err != nil {
			return nil, err
		}
		return found.GetBlock(request.Topic, 0).Offset, nil
	}
	return p.Resume(request, take, committed)
}

type soakProducer struct {
	topic    string
	producer sarama.AsyncProducer
	waiting  sync.WaitGroup
}

func (s *soakProducer) Send(partition int32, value []byte, done func(error)) {
	s.waiting.Add(1)
	s.producer.Input() <- &sarama.ProducerMessage{
		Topic: s.topic, Partition: partition, Value: sarama.ByteEncoder(value), Metadata: done,
	}
}

func (s *soakProducer) Flush() {
	s.waiting.Wait()
	s.producer.AsyncClose()
}

func soak(request *p.Request) (any, error) {
	makeProducer := func() (p.SoakProducer, error) {
		settings := config()
		settings.Producer.Idempotent = true
		settings.Producer.RequiredAcks = sarama.WaitForAll
		settings.Net.MaxOpenRequests = 1
		producer, err := sarama.NewAsyncProducer(request.Bootstrap, settings)
		if err != nil {
			return nil, err
		}
		made := &soakProducer{topic: request.Topic, producer: producer}
		go func() {
			for message := range producer.Successes() {
				message.Metadata.(func(error))(nil)
				made.waiting.Done()
			}
		}()
		go func() {
			for problem := range producer.Errors() {
				problem.Msg.Metadata.(func(error))(problem.Err)
				made.waiting.Done()
			}
		}()
		return made, nil
	}
	return p.Soak(request, makeProducer, newMember(request))
}

func code(err error) any {
	var topic *sarama.TopicError
	var partition *sarama.TopicPartitionError
	var known sarama.KError
	switch {
	case errors.As(err, &topic):
		return int16(topic.Err)
	case errors.As(err, &partition):
		return int16(partition.Err)
	case errors.As(err, &known):
		return int16(known)
	}
	return err.Error()
}

func admin(request *p.Request) (any, error) {
	cl, err := sarama.NewClusterAdmin(request.Bootstrap, config())
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return p.RunSteps(request.Args.Steps, actions(request, cl), code), nil
}

func withPrefix[V any](all map[string]V, prefix string) []string {
	names := []string{}
	for name := range all {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

func actions(request *p.Request, cl sarama.ClusterAdmin) map[string]func(p.Step) (any, error) {
	return map[string]func(p.Step) (any, error){
		"create_topic": func(step p.Step) (any, error) {
			detail := &sarama.TopicDetail{NumPartitions: step.Partitions, ReplicationFactor: -1, ConfigEntries: step.Configs}
			return nil, cl.CreateTopic(step.Topic, detail, false)
		},
		"list_topics": func(step p.Step) (any, error) {
			found, err := cl.ListTopics()
			return withPrefix(found, step.Prefix), err
		},
		"describe_topic": func(step p.Step) (any, error) {
			found, err := cl.DescribeTopics([]string{step.Topic})
			if err != nil {
				return nil, err
			}
			if found[0].Err != sarama.ErrNoError {
				return nil, found[0].Err
			}
			numbers, led, inSync := make([]int32, len(found[0].Partitions)), true, true
			for _, partition := range found[0].Partitions {
				numbers[partition.ID] = partition.ID
				led = led && partition.Leader >= 0
				inSync = inSync && len(partition.Isr) > 0
			}
			return map[string]any{"partitions": numbers, "led": led, "in_sync": inSync}, nil
		},
		"grow": func(step p.Step) (any, error) {
			return nil, cl.CreatePartitions(step.Topic, int32(step.Total), nil, false)
		},
		"describe_configs": func(step p.Step) (any, error) {
			found, err := cl.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: step.Topic})
			values := map[string]any{}
			for _, key := range step.Keys {
				values[key] = nil
			}
			for _, entry := range found {
				if _, wanted := values[entry.Name]; wanted {
					values[entry.Name] = entry.Value
				}
			}
			return values, err
		},
		"alter_configs": func(step p.Step) (any, error) {
			changes := map[string]sarama.IncrementalAlterConfigsEntry{}
			for name, value := range step.Set {
				changes[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
			}
			for _, name := range step.Delete {
				changes[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationDelete}
			}
			return nil, cl.IncrementalAlterConfig(sarama.TopicResource, step.Topic, changes, false)
		},
		"list_offsets": func(step p.Step) (any, error) {
			special := map[string]int64{"latest": -1, "earliest": -2, "max_timestamp": -3}
			var at int64
			switch when := step.At.(type) {
			case string:
				at = special[when]
			case float64:
				at = int64(when)
			}
			found, err := cl.ListOffsets(map[string]map[int32]int64{step.Topic: {step.Partition: at}}, nil)
			if err != nil {
				return nil, err
			}
			answer := found[step.Topic][step.Partition]
			if answer.Err != sarama.ErrNoError {
				return nil, answer.Err
			}
			return answer.Offset, nil
		},
		"delete_records": func(step p.Step) (any, error) {
			// It does not tell the new start of the log.
			return nil, cl.DeleteRecords(step.Topic, map[int32]int64{step.Partition: step.Before})
		},
		"list_groups": func(step p.Step) (any, error) {
			found, err := cl.ListConsumerGroups()
			return withPrefix(found, step.Prefix), err
		},
		"describe_group": func(step p.Step) (any, error) {
			found, err := cl.DescribeConsumerGroups([]string{step.Group})
			if err != nil {
				return nil, err
			}
			if found[0].Err != sarama.ErrNoError {
				return nil, found[0].Err
			}
			return map[string]any{"state": found[0].State, "members": len(found[0].Members)}, nil
		},
		"group_offsets": func(step p.Step) (any, error) {
			found, err := cl.ListConsumerGroupOffsets(step.Group, nil)
			if err != nil {
				return nil, err
			}
			offsets := map[string]int64{}
			for topic, partitions := range found.Blocks {
				for partition, block := range partitions {
					offsets[fmt.Sprintf("%s/%d", topic, partition)] = block.Offset
				}
			}
			return offsets, nil
		},
		"alter_group_offsets": func(step p.Step) (any, error) {
			wanted := map[string]map[int32]sarama.OffsetAndMetadata{step.Topic: {step.Partition: {Offset: step.Offset, LeaderEpoch: -1}}}
			told, err := cl.AlterConsumerGroupOffsets(step.Group, wanted, nil)
			if err != nil {
				return nil, err
			}
			if problem := told.Errors[step.Topic][step.Partition]; problem != sarama.ErrNoError {
				return nil, problem
			}
			return nil, nil
		},
		"delete_group_offsets": func(step p.Step) (any, error) {
			return nil, cl.DeleteConsumerGroupOffset(step.Group, step.Topic, step.Partition)
		},
		"delete_group": func(step p.Step) (any, error) { return nil, cl.DeleteConsumerGroup(step.Group) },
		"delete_topic": func(step p.Step) (any, error) { return nil, cl.DeleteTopic(step.Topic) },
		"describe_cluster": func(p.Step) (any, error) {
			brokers, controller, err := cl.DescribeCluster()
			return map[string]any{"brokers": len(brokers), "controller": controller >= 0}, err
		},
		"commit": func(step p.Step) (any, error) {
			client, err := sarama.NewClient(request.Bootstrap, config())
			if err != nil {
				return nil, err
			}
			defer client.Close()
			offsets, err := sarama.NewOffsetManagerFromClient(step.Group, client)
			if err != nil {
				return nil, err
			}
			partition, err := offsets.ManagePartition(step.Topic, step.Partition)
			if err != nil {
				return nil, err
			}
			partition.MarkOffset(step.Offset, "")
			offsets.Commit()
			err = partition.Close()
			_ = offsets.Close()
			return nil, err
		},
	}
}

func main() {
	p.Serve(map[string]p.Scenario{
		"version": version, "produce": produce, "consume": consume, "tail": tail, "resume": resume, "admin": admin, "soak": soak,
		"rebalance": func(request *p.Request) (any, error) { return p.Rebalance(request, newMember(request)) },
	})
}
