// Scenarios of rocketmq-client-go. Each prints one line. Arguments: name server, scenarios.
// CLASSIC_USER and CLASSIC_SECRET sign all requests.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var names []string
var credentials = primitive.Credentials{AccessKey: os.Getenv("CLASSIC_USER"), SecretKey: os.Getenv("CLASSIC_SECRET")}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func until(holds func() bool) {
	for end := time.Now().Add(90 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			panic("it does not come true")
		}
	}
}

func sender(group string) rocketmq.Producer {
	options := []producer.Option{producer.WithNameServer(names), producer.WithGroupName(group), producer.WithRetry(2)}
	if !credentials.IsEmpty() {
		options = append(options, producer.WithCredentials(credentials))
	}
	made, err := rocketmq.NewProducer(options...)
	must(err)
	must(made.Start())
	return made
}

func receiver(options ...consumer.Option) (rocketmq.PushConsumer, error) {
	options = append(options, consumer.WithNameServer(names))
	if !credentials.IsEmpty() {
		options = append(options, consumer.WithCredentials(credentials))
	}
	return rocketmq.NewPushConsumer(options...)
}

// refused sends to topics that the user may send to, may only read, and may not see.
func refused() string {
	sending := sender("go-refused")
	results := []string{}
	for _, topic := range []string{"Refused", "Readable", "Secret"} {
		_, err := sending.SendSync(context.Background(), primitive.NewMessage(topic, []byte("refused?")))
		results = append(results, fmt.Sprint(err))
	}
	must(sending.Shutdown())
	return strings.ReplaceAll(strings.Join(results, "; "), "\n", " ")
}

// sends stores messages in each way, and receives them; one fails once.
func sends() string {
	sending := sender("go")
	first, err := sending.SendSync(context.Background(), primitive.NewMessage("GoSends", []byte("sync")))
	must(err)
	var waiting sync.WaitGroup
	for i := 0; i < 50; i++ {
		waiting.Add(1)
		must(sending.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			must(err)
			waiting.Done()
		}, primitive.NewMessage("GoSends", []byte(fmt.Sprintf("async%d", i)))))
	}
	waiting.Wait()
	batch := []*primitive.Message{}
	for i := 0; i < 10; i++ {
		batch = append(batch, primitive.NewMessage("GoSends", []byte(fmt.Sprintf("batch%d", i))))
	}
	_, err = sending.SendSync(context.Background(), batch...)
	must(err)
	must(sending.SendOneWay(context.Background(), primitive.NewMessage("GoSends", []byte("oneway"))))
	late := primitive.NewMessage("GoSends", []byte("late"))
	late.WithDelayTimeLevel(1)
	_, err = sending.SendSync(context.Background(), late)
	must(err)
	var lock sync.Mutex
	seen, failed := map[string]bool{}, 0
	consuming, err := receiver(
		consumer.WithGroupName("go-sends"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	must(consuming.Subscribe("GoSends", consumer.MessageSelector{}, func(ctx context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, one := range found {
			if string(one.Body) == "sync" && one.ReconsumeTimes == 0 {
				failed++
				if context, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					context.DelayLevelWhenNextConsume = 1
				}
				return consumer.ConsumeRetryLater, nil
			}
			seen[string(one.Body)] = true
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(consuming.Start())
	until(func() bool { lock.Lock(); defer lock.Unlock(); return len(seen) == 63 })
	must(consuming.Shutdown())
	must(sending.Shutdown())
	return fmt.Sprintf("status=%d %d failed=%d", first.Status, len(seen), failed)
}

// ordered receives the messages of each queue in order.
func ordered() string {
	sending := sender("go-ordered")
	for i := 0; i < 40; i++ {
		message := primitive.NewMessage("GoOrdered", []byte(fmt.Sprintf("%02d", i)))
		message.WithShardingKey(fmt.Sprintf("%d", i%2))
		_, err := sending.SendSync(context.Background(), message)
		must(err)
	}
	var lock sync.Mutex
	seen, count := map[int][]string{}, 0
	consuming, err := receiver(
		consumer.WithGroupName("go-ordered"), consumer.WithConsumerOrder(true),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumerModel(consumer.Clustering),
	)
	must(err)
	must(consuming.Subscribe("GoOrdered", consumer.MessageSelector{}, func(_ context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, one := range found {
			seen[one.Queue.QueueId] = append(seen[one.Queue.QueueId], string(one.Body))
			count++
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(consuming.Start())
	until(func() bool { lock.Lock(); defer lock.Unlock(); return count >= 40 })
	must(consuming.Shutdown())
	must(sending.Shutdown())
	inOrder := true
	for _, bodies := range seen {
		inOrder = inOrder && sort.StringsAreSorted(bodies)
	}
	return fmt.Sprintf("%d in order=%v", count, inOrder)
}

// filters receives the messages with one tag.
func filters() string {
	sending := sender("go-filters")
	for i := 0; i < 10; i++ {
		message := primitive.NewMessage("GoFilters", []byte(fmt.Sprintf("%d", i)))
		message.WithTag([]string{"even", "odd"}[i%2])
		_, err := sending.SendSync(context.Background(), message)
		must(err)
	}
	var lock sync.Mutex
	seen := map[string]bool{}
	consuming, err := receiver(
		consumer.WithGroupName("go-filters"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "even"}
	must(consuming.Subscribe("GoFilters", selector, func(_ context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, one := range found {
			seen[string(one.Body)] = true
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(consuming.Start())
	until(func() bool { lock.Lock(); defer lock.Unlock(); return len(seen) >= 5 })
	must(consuming.Shutdown())
	must(sending.Shutdown())
	bodies := []string{}
	for body := range seen {
		bodies = append(bodies, body)
	}
	sort.Strings(bodies)
	return strings.Join(bodies, ",")
}

func main() {
	rlog.SetLogLevel("error")
	names = []string{os.Args[1]}
	scenarios := map[string]func() string{"sends": sends, "ordered": ordered, "filters": filters, "refused": refused}
	for _, name := range os.Args[2:] {
		fmt.Println(name, scenarios[name]())
	}
	os.Exit(0)
}
