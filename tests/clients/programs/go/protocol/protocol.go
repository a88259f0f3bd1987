// Package protocol is what the Go client programs share: the command line, records as JSON, and the stories told by two
// members. It knows no Kafka client.
package protocol

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

const joinTimeout = 60 * time.Second
const progressEvery = 20

// ErrUnsupported says that the client has no such thing.
var ErrUnsupported = errors.New("unsupported")

func Unsupported(why string) error { return fmt.Errorf("%w: %s", ErrUnsupported, why) }

type Header struct {
	Name  string
	Value []byte // nil is null
}

// Headers travel as [name, value] pairs.
func (h Header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Name, h.Value}) }

func (h *Header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.Name, &h.Value})
}

type Record struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp *int64   `json:"timestamp"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
}

type Batch struct {
	Codec     string   `json:"codec"`
	Partition int32    `json:"partition"`
	Records   []Record `json:"records"`
}

type Step struct {
	Do         string             `json:"do"`
	Topic      string             `json:"topic"`
	Group      string             `json:"group"`
	Prefix     string             `json:"prefix"`
	Partitions int32              `json:"partitions"`
	Partition  int32              `json:"partition"`
	Total      int                `json:"total"`
	Configs    map[string]*string `json:"configs"`
	Set        map[string]string  `json:"set"`
	Delete     []string           `json:"delete"`
	Keys       []string           `json:"keys"`
	At         any                `json:"at"`
	Before     int64              `json:"before"`
	Offset     int64              `json:"offset"`
}

type Args struct {
	Batches    []Batch  `json:"batches"`
	Acks       string   `json:"acks"`
	Idempotent bool     `json:"idempotent"`
	PauseMs    int      `json:"pause_ms"`
	Topics     []string `json:"topics"`
	Start      any      `json:"start"`
	Count      int      `json:"count"`
	TimeoutMs  int      `json:"timeout_ms"`
	Partitions int      `json:"partitions"`
	Records    []Record `json:"records"`
	Group      string   `json:"group"`
	Assignor   string   `json:"assignor"`
	Protocol   string   `json:"protocol"`
	Static     bool     `json:"static"`
	Pattern    string   `json:"pattern"`
	First      int      `json:"first"`
	Total      int      `json:"total"`
	Steps      []Step   `json:"steps"`
	RatePerS   float64  `json:"rate_per_s"`
}

type Request struct {
	Bootstrap []string
	Topic     string
	Args      Args
}

func (r *Request) Topics() []string {
	if len(r.Args.Topics) > 0 {
		return r.Args.Topics
	}
	return []string{r.Topic}
}

func (r *Request) Timeout() time.Duration {
	if r.Args.TimeoutMs > 0 {
		return time.Duration(r.Args.TimeoutMs) * time.Millisecond
	}
	return 30 * time.Second
}

// StartTime is the time in ms to read from; false means from the start.
func (r *Request) StartTime() (int64, bool) {
	if at, ok := r.Args.Start.(map[string]any); ok {
		return int64(at["timestamp"].(float64)), true
	}
	return 0, false
}

type Scenario func(*Request) (any, error)

func Serve(scenarios map[string]Scenario) {
	flags := flag.NewFlagSet("program", flag.ExitOnError)
	bootstrap := flags.String("bootstrap", "", "")
	topic := flags.String("topic", "", "")
	arguments := flags.String("json-args", "{}", "")
	_ = flags.Parse(os.Args[2:])
	text := []byte(*arguments)
	var err error
	if strings.HasPrefix(*arguments, "@") {
		text, err = os.ReadFile((*arguments)[1:])
	}
	request := &Request{Bootstrap: strings.Split(*bootstrap, ","), Topic: *topic}
	if err == nil {
		err = json.Unmarshal(text, &request.Args)
	}
	if request.Args.Acks == "" {
		request.Args.Acks = "all"
	}
	var result any
	if err == nil {
		if scenario, ok := scenarios[os.Args[1]]; ok {
			result, err = scenario(request)
		} else {
			err = Unsupported("no scenario " + os.Args[1])
		}
	}
	switch {
	case errors.Is(err, ErrUnsupported):
		Say(map[string]any{"unsupported": err.Error()})
	case err != nil:
		Say(map[string]any{"error": err.Error()})
	default:
		Say(map[string]any{"result": result})
	}
	os.Exit(0)
}

var sayLock sync.Mutex

func Say(message any) {
	sayLock.Lock()
	defer sayLock.Unlock()
	line, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func InOrder(records []Record) map[string]any {
	sort.Slice(records, func(i, j int) bool {
		a, b := records[i], records[j]
		if a.Topic != b.Topic {
			return a.Topic < b.Topic
		}
		if a.Partition != b.Partition {
			return a.Partition < b.Partition
		}
		return a.Offset < b.Offset
	})
	for i := range records {
		if records[i].Headers == nil {
			records[i].Headers = []Header{}
		}
	}
	if records == nil {
		records = []Record{}
	}
	return map[string]any{"records": records}
}

// RunSteps does what an admin client is asked for, one after another.
func RunSteps(steps []Step, actions map[string]func(Step) (any, error), code func(error) any) []map[string]any {
	results := []map[string]any{}
	for _, step := range steps {
		action, known := actions[step.Do]
		if !known {
			results = append(results, map[string]any{"unsupported": true})
			continue
		}
		result, err := action(step)
		switch {
		case errors.Is(err, ErrUnsupported):
			results = append(results, map[string]any{"unsupported": true})
		case err != nil:
			fmt.Fprintln(os.Stderr, step.Do, err)
			results = append(results, map[string]any{"error": code(err)})
		default:
			results = append(results, map[string]any{"ok": result})
		}
	}
	return results
}

// Owned is what a member has, kept by its client's callbacks.
type Owned struct {
	lock        sync.Mutex
	now         map[int32]bool
	lost        map[int32]bool
	assignments int
}

func NewOwned() *Owned { return &Owned{now: map[int32]bool{}, lost: map[int32]bool{}} }

func (o *Owned) Add(partitions []int32) {
	o.lock.Lock()
	defer o.lock.Unlock()
	if len(partitions) == 0 {
		return
	}
	for _, partition := range partitions {
		o.now[partition] = true
	}
	o.assignments++
}

func (o *Owned) Remove(partitions []int32) {
	o.lock.Lock()
	defer o.lock.Unlock()
	for _, partition := range partitions {
		delete(o.now, partition)
		o.lost[partition] = true
	}
}

func (o *Owned) Now() []int32 {
	o.lock.Lock()
	defer o.lock.Unlock()
	return sorted(o.now)
}

func (o *Owned) Lost() int {
	o.lock.Lock()
	defer o.lock.Unlock()
	return len(o.lost)
}

func (o *Owned) Assignments() int {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.assignments
}

func sorted(set map[int32]bool) []int32 {
	all := []int32{}
	for partition := range set {
		all = append(all, partition)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all
}

// Member polls by itself until it is closed.
type Member interface {
	Owned() *Owned
	Close()
}

type MakeMember func(instance string, onRecord func([]byte)) (Member, error)

func waitFor(what string, condition func() bool) error {
	until := time.Now().Add(joinTimeout)
	for !condition() {
		if time.Now().After(until) {
			return fmt.Errorf("waited %s for: %s", joinTimeout, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func Rebalance(request *Request, makeMember MakeMember) (any, error) {
	count := request.Args.Partitions
	ignore := func([]byte) {}
	name := func(name string) string {
		if request.Args.Static {
			return name
		}
		return ""
	}
	first, err := makeMember(name("first"), ignore)
	if err != nil {
		return nil, err
	}
	ownsAll := func() bool { return len(first.Owned().Now()) == count }
	if err := waitFor("the first member to own every partition", ownsAll); err != nil {
		return nil, err
	}
	result := map[string]any{"alone": first.Owned().Now()}
	second, err := makeMember(name("second"), ignore)
	if err != nil {
		return nil, err
	}
	shared := func() bool {
		one, two := first.Owned().Now(), second.Owned().Now()
		union := map[int32]bool{}
		for _, partition := range append(append([]int32{}, one...), two...) {
			union[partition] = true
		}
		return len(one) > 0 && len(two) > 0 && len(one)+len(two) == count && len(union) == count
	}
	if err := waitFor("two members to share the partitions", shared); err != nil {
		return nil, err
	}
	together := [][]int32{first.Owned().Now(), second.Owned().Now()}
	sort.Slice(together, func(i, j int) bool { return together[i][0] < together[j][0] })
	result["together"] = together
	if request.Args.Static {
		before, owned := first.Owned().Assignments(), fmt.Sprint(second.Owned().Now())
		second.Close()
		again, err := makeMember("second", ignore)
		if err != nil {
			return nil, err
		}
		owns := func() bool { return len(again.Owned().Now()) > 0 }
		if err := waitFor("the restarted static member to own something", owns); err != nil {
			return nil, err
		}
		result["same"] = fmt.Sprint(again.Owned().Now()) == owned
		result["disturbed"] = first.Owned().Assignments() - before
		again.Close()
	} else {
		result["lost"] = first.Owned().Lost()
		second.Close()
		if err := waitFor("the first member to own everything again", ownsAll); err != nil {
			return nil, err
		}
		result["after"] = first.Owned().Now()
	}
	first.Close()
	return result, nil
}

// Resume is told by two consumers of a group, each of which reads some records, commits them and closes.
func Resume(
	request *Request, take func(count int) ([]int64, error), committed func() (any, error),
) (any, error) {
	first, err := take(request.Args.First)
	if err != nil {
		return nil, err
	}
	between, err := committed()
	if err != nil {
		return nil, err
	}
	second, err := take(request.Args.Total - request.Args.First)
	if err != nil {
		return nil, err
	}
	after, err := committed()
	return map[string]any{"first": first, "committed": between, "second": second, "committed_after": after}, err
}

// SoakProducer sends without waiting; done is called once for each record.
type SoakProducer interface {
	Send(partition int32, value []byte, done func(error))
	Flush()
}

func Soak(request *Request, makeProducer func() (SoakProducer, error), makeMember MakeMember) (any, error) {
	var lock sync.Mutex
	acked, seen, failed := map[string]bool{}, map[string]bool{}, map[string]int{}
	member, err := makeMember("", func(value []byte) {
		lock.Lock()
		defer lock.Unlock()
		seen[string(value)] = true
	})
	if err != nil {
		return nil, err
	}
	producer, err := makeProducer()
	if err != nil {
		return nil, err
	}
	for number := 0; number < request.Args.Count; number++ {
		value := fmt.Sprint(number)
		producer.Send(int32(number%request.Args.Partitions), []byte(value), func(err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				failed[err.Error()]++
				return
			}
			acked[value] = true
			if len(acked)%progressEvery == 0 {
				Say(map[string]any{"progress": len(acked)})
			}
		})
		time.Sleep(time.Duration(float64(time.Second) / request.Args.RatePerS))
	}
	producer.Flush()
	until := time.Now().Add(request.Timeout())
	for {
		lock.Lock()
		missing := 0
		for value := range acked {
			if !seen[value] {
				missing++
			}
		}
		answer := map[string]any{"acked": len(acked), "failed": failed, "missing": missing}
		lock.Unlock()
		if missing == 0 || time.Now().After(until) {
			if missing == 0 {
				member.Close()
			}
			return answer, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}
