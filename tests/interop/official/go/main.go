// The official Go client of Apache RocketMQ, driven by JSON lines: commands on standard input, replies and events on
// standard output. driver.py, one folder up, says what they are.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const messageNotFound = 40401

type command struct {
	Id, Count, Number, Size, Batch, Threads                       int
	Do, Name, Client, Group, Topic, Filter, Expression, Body, Tag string
	Handle, Transaction                                           string
	InFlight                                                      int `json:"in_flight"`
	Topics, Keys                                                  []string
	Transactions                                                  bool
	AwaitS                                                        float64 `json:"await_s"`
	InvisibleS                                                    float64 `json:"invisible_s"`
	Failures                                                      int32
	Properties                                                    map[string]string
	MessageGroup                                                  string `json:"message_group"`
	DeliverAtMs                                                   int64  `json:"deliver_at_ms"`
	Priority                                                      *int32
}

type object = map[string]any

var (
	writing  sync.Mutex
	mutex    sync.Mutex
	received = map[int]*rmq.MessageView{} // by number: messages that can be acknowledged
	clients  = map[string]any{}
)

func say(line object) {
	text, _ := json.Marshal(line)
	writing.Lock()
	defer writing.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func described(message *rmq.MessageView) object {
	mutex.Lock()
	number := len(received) + 1
	received[number] = message
	mutex.Unlock()
	body := message.GetBody()
	digest := md5.Sum(body)
	keys := append([]string{}, message.GetKeys()...)
	sort.Strings(keys)
	return object{
		"number":     number,
		"id":         message.GetMessageId(),
		"topic":      message.GetTopic(),
		"size":       len(body),
		"md5":        hex.EncodeToString(digest[:]),
		"body":       string(body[:min(64, len(body))]),
		"tag":        message.GetTag(),
		"keys":       keys,
		"properties": message.GetProperties(),
		"group":      message.GetMessageGroup(),
		"attempt":    message.GetDeliveryAttempt(),
	}
}

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{
		AccessKey: os.Getenv("OFFICIAL_USER"), AccessSecret: os.Getenv("OFFICIAL_SECRET"),
	}}
}

func subscriptions(c command) map[string]*rmq.FilterExpression {
	expression := c.Expression
	if expression == "" {
		expression = "*"
	}
	kind := rmq.TAG
	if c.Filter == "sql" {
		kind = rmq.SQL92
	}
	return map[string]*rmq.FilterExpression{c.Topic: rmq.NewFilterExpressionWithType(expression, kind)}
}

type startable interface {
	Start() error
	GracefulStop() error
}

func started(name string, client startable, err error) (any, error) {
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		return nil, err
	}
	mutex.Lock()
	defer mutex.Unlock()
	clients[name] = client
	return object{}, nil
}

func clientOf[T any](c command) T {
	mutex.Lock()
	defer mutex.Unlock()
	return clients[c.Client].(T)
}

func messageOf(c command) *rmq.Message {
	body := []byte(c.Body)
	if c.Size > 0 {
		body = bytes.Repeat(body, c.Size/len(body)+1)[:c.Size]
	}
	message := &rmq.Message{Topic: c.Topic, Body: body}
	if c.Tag != "" {
		message.SetTag(c.Tag)
	}
	message.SetKeys(c.Keys...)
	for key, value := range c.Properties {
		message.AddProperty(key, value)
	}
	if c.MessageGroup != "" {
		message.SetMessageGroup(c.MessageGroup)
	}
	if c.DeliverAtMs > 0 {
		message.SetDelayTimestamp(time.UnixMilli(c.DeliverAtMs))
	}
	if c.Priority != nil {
		message.SetPriority(*c.Priority)
	}
	return message
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func producer(c command) (any, error) {
	options := []rmq.ProducerOption{rmq.WithTopics(c.Topics...)}
	if c.Transactions { // The checker answers as the message's own property says.
		check := func(message *rmq.MessageView) rmq.TransactionResolution {
			say(object{"event": "check", "client": c.Name, "message": described(message)})
			if message.GetProperties()["check"] == "commit" {
				return rmq.COMMIT
			}
			return rmq.ROLLBACK
		}
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
	}
	client, err := rmq.NewProducer(config(""), options...)
	return started(c.Name, client, err)
}

func simple(c command) (any, error) {
	client, err := rmq.NewSimpleConsumer(config(c.Group),
		rmq.WithSimpleAwaitDuration(seconds(c.AwaitS)), rmq.WithSimpleSubscriptionExpressions(subscriptions(c)))
	return started(c.Name, client, err)
}

func push(c command) (any, error) {
	consume := func(message *rmq.MessageView) rmq.ConsumerResult { // Fails the first attempts of every message.
		say(object{"event": "message", "client": c.Name, "message": described(message)})
		if message.GetDeliveryAttempt() <= c.Failures {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	client, err := rmq.NewPushConsumer(config(c.Group), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(subscriptions(c)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}))
	return started(c.Name, client, err)
}

func send(c command) (any, error) {
	client := clientOf[rmq.Producer](c)
	var receipts []*rmq.SendReceipt
	var err error
	if c.Transaction == "" {
		receipts, err = client.Send(context.Background(), messageOf(c))
	} else {
		transaction := client.BeginTransaction()
		receipts, err = client.SendWithTransaction(context.Background(), messageOf(c), transaction)
		if err == nil && c.Transaction == "commit" {
			err = transaction.Commit()
		} else if err == nil && c.Transaction == "rollback" {
			err = transaction.RollBack()
		}
	}
	if err != nil {
		return nil, err
	}
	return object{"message_id": receipts[0].MessageID, "recall_handle": receipts[0].RecallHandle}, nil
}

func recall(c command) (any, error) {
	id, err := clientOf[rmq.Producer](c).Recall(context.Background(), c.Topic, c.Handle)
	return object{"message_id": id}, err
}

func receiveSome(client rmq.SimpleConsumer, count int, invisible float64) ([]*rmq.MessageView, error) {
	messages, err := client.Receive(context.Background(), int32(count), seconds(invisible))
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == messageNotFound {
		return nil, nil // To this client nothing is an error.
	}
	return messages, err
}

func receive(c command) (any, error) {
	messages, err := receiveSome(clientOf[rmq.SimpleConsumer](c), c.Count, c.InvisibleS)
	found := []object{}
	for _, message := range messages {
		found = append(found, described(message))
	}
	return object{"messages": found}, err
}

func numbered(number int) *rmq.MessageView {
	mutex.Lock()
	defer mutex.Unlock()
	return received[number]
}

func ack(c command) (any, error) {
	return object{}, clientOf[rmq.SimpleConsumer](c).Ack(context.Background(), numbered(c.Number))
}

func change(c command) (any, error) {
	return object{}, clientOf[rmq.SimpleConsumer](c).ChangeInvisibleDuration(numbered(c.Number), seconds(c.InvisibleS))
}

func stop(c command) (any, error) {
	return object{}, clientOf[startable](c).GracefulStop()
}

// Send COUNT messages, IN_FLIGHT at a time; say how long each took.
func storm(c command) (any, error) {
	client := clientOf[rmq.Producer](c)
	costs := make([]float64, c.Count)
	var next atomic.Int64
	var group sync.WaitGroup
	var failure atomic.Value
	begun := time.Now()
	for range c.InFlight {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := next.Add(1) - 1; i < int64(c.Count); i = next.Add(1) - 1 {
				one := time.Now()
				if _, err := client.Send(context.Background(), messageOf(c)); err != nil {
					failure.Store(err)
				}
				costs[i] = float64(time.Since(one).Nanoseconds()) / 1000
			}
		}()
	}
	group.Wait()
	taken := time.Since(begun).Seconds()
	if err := failure.Load(); err != nil {
		return nil, err.(error)
	}
	sort.Float64s(costs)
	return object{"seconds": taken, "costs_us": costs}, nil
}

// Receive and acknowledge, one after the other in each of THREADS, until COUNT are done.
func drain(c command) (any, error) {
	client := clientOf[rmq.SimpleConsumer](c)
	var done atomic.Int64
	var group sync.WaitGroup
	begun := time.Now()
	for range c.Threads {
		group.Add(1)
		go func() {
			defer group.Done()
			for done.Load() < int64(c.Count) {
				messages, _ := receiveSome(client, c.Batch, 60)
				for _, message := range messages {
					if client.Ack(context.Background(), message) == nil {
						done.Add(1)
					}
				}
			}
		}()
	}
	group.Wait()
	return object{"seconds": time.Since(begun).Seconds()}, nil
}

var commands = map[string]func(command) (any, error){
	"producer": producer, "simple": simple, "push": push, "send": send, "recall": recall, "receive": receive,
	"ack": ack, "change": change, "close": stop, "storm": storm, "drain": drain,
}

func run(c command) {
	reply, err := commands[c.Do](c)
	if err == nil {
		say(object{"id": c.Id, "reply": reply})
		return
	}
	failure := object{"type": fmt.Sprintf("%T", err), "code": nil, "text": err.Error()}
	if status, ok := rmq.AsErrRpcStatus(err); ok {
		failure["code"] = status.GetCode()
	}
	say(object{"id": c.Id, "error": failure})
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		go run(c)
	}
}
