// franz-go behind the common command line of the client programs.
package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	p "streamhouse/clients/protocol"
)

const timeout = 60 * time.Second

var codecs = map[string]kgo.CompressionCodec{
	"":       kgo.NoCompression(),
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

var balancers = map[string]kgo.GroupBalancer{
	"":                   kgo.RangeBalancer(),
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	"uniform":            kgo.StickyBalancer(),
}

func version(*p.Request) (any, error) {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/twmb/franz-go" {
			return map[string]string{"client": "franz-go", "version": strings.TrimPrefix(module.Version, "v")}, nil
		}
	}
	return nil, errors.New("the build does not tell its modules")
}

func client(request *p.Request, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(request.Bootstrap...)}, options...)...)
}

func recordOf(topic string, partition int32, from p.Record) *kgo.Record {
	record := &kgo.Record{Topic: topic, Partition: partition, Key: from.Key, Value: from.Value}
	if from.Timestamp != nil {
		record.Timestamp = time.UnixMilli(*from.Timestamp)
	}
	for _, header := range from.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
	}
	return record
}

func produce(request *p.Request) (any, error) {
	offsets := [][]int64{}
	for _, batch := range request.Args.Batches {
		options := []kgo.Opt{
			kgo.ProducerBatchCompression(codecs[batch.Codec]),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerLinger(20 * time.Millisecond),
		}
		if request.Args.PauseMs > 0 {
			options = append(options, kgo.ProducerLinger(0))
		}
		if !request.Args.Idempotent {
			acks := map[string]kgo.Acks{"all": kgo.AllISRAcks(), "1": kgo.LeaderAck(), "0": kgo.NoAck()}
			options = append(options, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(acks[request.Args.Acks]))
		}
		producer, err := client(request, options...)
		if err != nil {
			return nil, err
		}
		// Not its delivery timeout: that counts from a record's own timestamp, which may lie years back.
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		sent := make([]*kgo.Record, 0, len(batch.Records))
		errs := make([]error, len(batch.Records))
		for number, from := range batch.Records {
			record := recordOf(request.Topic, batch.Partition, from)
			sent = append(sent, record)
			producer.Produce(ctx, record, func(_ *kgo.Record, err error) { errs[number] = err })
			time.Sleep(time.Duration(request.Args.PauseMs) * time.Millisecond)
		}
		if err := producer.Flush(ctx); err != nil {
			return nil, err
		}
		producer.Close()
		for number, record := range sent {
			if errs[number] != nil {
				return nil, errs[number]
			}
			offset := record.Offset
			if request.Args.Acks == "0" && !request.Args.Idempotent {
				offset = -1
			}
			offsets = append(offsets, []int64{int64(record.Partition), offset})
		}
	}
	return map[string]any{"offsets": offsets}, nil
}

func read(record *kgo.Record) p.Record {
	at := record.Timestamp.UnixMilli()
	result := p.Record{
		Topic: record.Topic, Partition: record.Partition, Offset: record.Offset,
		Timestamp: &at, Key: record.Key, Value: record.Value,
	}
	for _, header := range record.Headers {
		result.Headers = append(result.Headers, p.Header{Name: header.Key, Value: header.Value})
	}
	return result
}

func pollUntil(consumer *kgo.Client, count int, until time.Time) ([]p.Record, error) {
	records := []p.Record{}
	for len(records) < count && time.Now().Before(until) {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := consumer.PollFetches(ctx)
		cancel()
		for _, problem := range fetches.Errors() {
			if !errors.Is(problem.Err, context.DeadlineExceeded) {
				return nil, problem.Err
			}
		}
		fetches.EachRecord(func(record *kgo.Record) { records = append(records, read(record)) })
	}
	return records, nil
}

func consume(request *p.Request) (any, error) {
	start := kgo.NewOffset().AtStart()
	if at, timed := request.StartTime(); timed {
		start = kgo.NewOffset().AfterMilli(at)
	}
	consumer, err := client(request, kgo.ConsumeTopics(request.Topics()...), kgo.ConsumeResetOffset(start))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	records, err := pollUntil(consumer, request.Args.Count, time.Now().Add(request.Timeout()))
	return p.InOrder(records), err
}

func tail(request *p.Request) (any, error) {
	admin, err := client(request)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	ends, err := kadm.NewClient(admin).ListEndOffsets(context.Background(), request.Topic)
	if err != nil {
		return nil, err
	}
	positions := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) { positions[end.Partition] = kgo.NewOffset().At(end.Offset) })
	partitions := map[string]map[int32]kgo.Offset{request.Topic: positions}
	consumer, err := client(request, kgo.ConsumePartitions(partitions))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	if _, err := pollUntil(consumer, 1, time.Now().Add(200*time.Millisecond)); err != nil {
		return nil, err
	}
	request.Args.Batches = []p.Batch{{Records: request.Args.Records}}
	if _, err := produce(request); err != nil {
		return nil, err
	}
	records, err := pollUntil(consumer, len(request.Args.Records), time.Now().Add(request.Timeout()))
	return p.InOrder(records), err
}

type member struct {
	owned    *p.Owned
	consumer *kgo.Client
	cancel   context.CancelFunc
	done     chan struct{}
}

func (m *member) Owned() *p.Owned { return m.owned }

func (m *member) Close() {
	m.cancel()
	<-m.done
	m.consumer.Close()
}

func groupOptions(request *p.Request) []kgo.Opt {
	options := []kgo.Opt{
		kgo.ConsumerGroup(request.Args.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(400 * time.Millisecond),
	}
	if request.Args.Pattern != "" {
		options = append(options, kgo.ConsumeTopics(request.Args.Pattern), kgo.ConsumeRegex())
	} else {
		options = append(options, kgo.ConsumeTopics(request.Topic))
	}
	if request.Args.Protocol == "consumer" {
		assignor := request.Args.Assignor
		if assignor == "" {
			assignor = "uniform"
		}
		return append(options, kgo.ServerSideBalancer(), kgo.Balancers(balancers[assignor]))
	}
	return append(options, kgo.Balancers(balancers[request.Args.Assignor]))
}

func newMember(request *p.Request) p.MakeMember {
	return func(instance string, onRecord func([]byte)) (p.Member, error) {
		owned := p.NewOwned()
		numbers := func(all map[string][]int32) (found []int32) {
			for _, partitions := range all {
				found = append(found, partitions...)
			}
			return found
		}
		gone := func(_ context.Context, _ *kgo.Client, all map[string][]int32) { owned.Remove(numbers(all)) }
		options := append(groupOptions(request),
			kgo.AutoCommitInterval(500*time.Millisecond),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, all map[string][]int32) {
				owned.Add(numbers(all))
			}),
			kgo.OnPartitionsRevoked(gone),
			kgo.OnPartitionsLost(gone),
		)
		if instance != "" {
			if request.Args.Protocol == "consumer" {
				return nil, p.Unsupported("when it leaves, its heartbeat names no instance, and the broker keeps the place")
			}
			options = append(options, kgo.InstanceID(instance))
		}
		consumer, err := client(request, options...)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		made := &member{owned: owned, consumer: consumer, cancel: cancel, done: make(chan struct{})}
		go func() {
			defer close(made.done)
			for ctx.Err() == nil {
				consumer.PollFetches(ctx).EachRecord(func(record *kgo.Record) { onRecord(record.Value) })
			}
		}()
		return made, nil
	}
}

func resume(request *p.Request) (any, error) {
	until := time.Now().Add(request.Timeout())
	take := func(count int) ([]int64, error) {
		consumer, err := client(request, append(groupOptions(request), kgo.DisableAutoCommit())...)
		if err != nil {
			return nil, err
		}
		defer consumer.Close()
		offsets := []int64{}
		for len(offsets) < count && time.Now().Before(until) {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			fetches := consumer.PollRecords(ctx, 1)
			cancel()
			for _, record := range fetches.Records() {
				if err := consumer.CommitRecords(context.Background(), record); err != nil {
					return nil, err
				}
				offsets = append(offsets, record.Offset)
			}
		}
		return offsets, nil
	}
	committed := func() (any, error) {
		connection, err := client(request)
		if err != nil {
			return nil, err
		}
		defer connection.Close()
		found, err := kadm.NewClient(connection).FetchOffsets(context.Background(), request.Args.Group)
		if at, ok := found.Lookup(request.Topic, 0); ok {
			return at.At, err
		}
		return nil, err
	}
	return p.Resume(request, take, committed)
}

type soakProducer struct {
	topic    string
	producer *kgo.Client
}

func (s *soakProducer) Send(partition int32, value []byte, done func(error)) {
	record := &kgo.Record{Topic: s.topic, Partition: partition, Value: value}
	s.producer.Produce(context.Background(), record, func(_ *kgo.Record, err error) { done(err) })
}

func (s *soakProducer) Flush() { _ = s.producer.Flush(context.Background()) }

func soak(request *p.Request) (any, error) {
	makeProducer := func() (p.SoakProducer, error) {
		producer, err := client(request,
			kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordDeliveryTimeout(90*time.Second))
		return &soakProducer{topic: request.Topic, producer: producer}, err
	}
	return p.Soak(request, makeProducer, newMember(request))
}

func code(err error) any {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return err.Error()
}

func admin(request *p.Request) (any, error) {
	connection, err := client(request)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return p.RunSteps(request.Args.Steps, actions(ctx, kadm.NewClient(connection)), code), nil
}

func actions(ctx context.Context, cl *kadm.Client) map[string]func(p.Step) (any, error) {
	offsetOf := func(found kadm.ListedOffsets, err error, step p.Step) (any, error) {
		if err != nil {
			return nil, err
		}
		at, ok := found.Lookup(step.Topic, step.Partition)
		if !ok {
			return nil, errors.New("no such partition in the answer")
		}
		return at.Offset, at.Err
	}
	commit := func(step p.Step) (any, error) {
		offsets := kadm.Offsets{}
		offsets.Add(kadm.Offset{Topic: step.Topic, Partition: step.Partition, At: step.Offset, LeaderEpoch: -1})
		told, err := cl.CommitOffsets(ctx, step.Group, offsets)
		if err == nil {
			err = told.Error()
		}
		return nil, err
	}
	return map[string]func(p.Step) (any, error){
		"create_topic": func(step p.Step) (any, error) {
			_, err := cl.CreateTopic(ctx, step.Partitions, -1, step.Configs, step.Topic)
			return nil, err
		},
		"list_topics": func(step p.Step) (any, error) {
			found, err := cl.ListTopics(ctx)
			names := []string{}
			for _, name := range found.Names() {
				if strings.HasPrefix(name, step.Prefix) {
					names = append(names, name)
				}
			}
			return names, err
		},
		"describe_topic": func(step p.Step) (any, error) {
			found, err := cl.ListTopics(ctx, step.Topic)
			if err != nil {
				return nil, err
			}
			topic := found[step.Topic]
			led, inSync, numbers := true, true, []int32{}
			for _, partition := range topic.Partitions.Sorted() {
				numbers = append(numbers, partition.Partition)
				led = led && partition.Leader >= 0
				inSync = inSync && len(partition.ISR) > 0
			}
			return map[string]any{"partitions": numbers, "led": led, "in_sync": inSync}, topic.Err
		},
		"grow": func(step p.Step) (any, error) {
			told, err := cl.UpdatePartitions(ctx, step.Total, step.Topic)
			if err != nil {
				return nil, err
			}
			return nil, told[step.Topic].Err
		},
		"describe_configs": func(step p.Step) (any, error) {
			told, err := cl.DescribeTopicConfigs(ctx, step.Topic)
			if err != nil {
				return nil, err
			}
			found, err := told.On(step.Topic, nil)
			if err == nil {
				err = found.Err
			}
			values := map[string]any{}
			for _, key := range step.Keys {
				values[key] = nil
			}
			for _, config := range found.Configs {
				if _, wanted := values[config.Key]; wanted && config.Value != nil {
					values[config.Key] = *config.Value
				}
			}
			return values, err
		},
		"alter_configs": func(step p.Step) (any, error) {
			changes := []kadm.AlterConfig{}
			for name, value := range step.Set {
				changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
			}
			for _, name := range step.Delete {
				changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
			}
			told, err := cl.AlterTopicConfigs(ctx, changes, step.Topic)
			if err != nil {
				return nil, err
			}
			answer, err := told.On(step.Topic, nil)
			if err == nil {
				err = answer.Err
			}
			return nil, err
		},
		"list_offsets": func(step p.Step) (any, error) {
			switch at := step.At.(type) {
			case string:
				lookup := map[string]func(context.Context, ...string) (kadm.ListedOffsets, error){
					"earliest": cl.ListStartOffsets, "latest": cl.ListEndOffsets, "max_timestamp": cl.ListMaxTimestampOffsets,
				}[at]
				found, err := lookup(ctx, step.Topic)
				return offsetOf(found, err, step)
			case float64:
				found, err := cl.ListOffsetsAfterMilli(ctx, int64(at), step.Topic)
				return offsetOf(found, err, step)
			}
			return nil, fmt.Errorf("no such time: %v", step.At)
		},
		"delete_records": func(step p.Step) (any, error) {
			offsets := kadm.Offsets{}
			offsets.Add(kadm.Offset{Topic: step.Topic, Partition: step.Partition, At: step.Before})
			told, err := cl.DeleteRecords(ctx, offsets)
			if err != nil {
				return nil, err
			}
			answer, _ := told.Lookup(step.Topic, step.Partition)
			return answer.LowWatermark, answer.Err
		},
		"list_groups": func(step p.Step) (any, error) {
			found, err := cl.ListGroups(ctx)
			names := []string{}
			for _, name := range found.Groups() {
				if strings.HasPrefix(name, step.Prefix) {
					names = append(names, name)
				}
			}
			return names, err
		},
		"describe_group": func(step p.Step) (any, error) {
			found, err := cl.DescribeGroups(ctx, step.Group)
			if err != nil {
				return nil, err
			}
			group := found[step.Group]
			return map[string]any{"state": group.State, "members": len(group.Members)}, group.Err
		},
		"group_offsets": func(step p.Step) (any, error) {
			found, err := cl.FetchOffsets(ctx, step.Group)
			offsets := map[string]int64{}
			found.Each(func(each kadm.OffsetResponse) {
				offsets[fmt.Sprintf("%s/%d", each.Topic, each.Partition)] = each.At
			})
			return offsets, err
		},
		"alter_group_offsets": commit,
		"commit":              commit,
		"delete_group_offsets": func(step p.Step) (any, error) {
			set := kadm.TopicsSet{}
			set.Add(step.Topic, step.Partition)
			told, err := cl.DeleteOffsets(ctx, step.Group, set)
			if err == nil {
				err = told.Error()
			}
			return nil, err
		},
		"delete_group": func(step p.Step) (any, error) {
			_, err := cl.DeleteGroup(ctx, step.Group)
			return nil, err
		},
		"delete_topic": func(step p.Step) (any, error) {
			_, err := cl.DeleteTopic(ctx, step.Topic)
			return nil, err
		},
		"describe_cluster": func(p.Step) (any, error) {
			found, err := cl.BrokerMetadata(ctx)
			return map[string]any{"brokers": len(found.Brokers), "controller": found.Controller >= 0}, err
		},
	}
}

func main() {
	p.Serve(map[string]p.Scenario{
		"version": version, "produce": produce, "consume": consume, "tail": tail, "resume": resume, "admin": admin, "soak": soak,
		"rebalance": func(request *p.Request) (any, error) { return p.Rebalance(request, newMember(request)) },
	})
}
