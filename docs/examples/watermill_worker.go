// A watermill worker (watermill-redisstream) beside a reaper.
// REDIS_URL=… go run watermill_worker.go produce 10 | work <consumer>
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

const never = 365 * 24 * time.Hour

func main() {
	mode, name := os.Args[1], os.Args[2]
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	check(err)
	options.MaxRetries = -1 // else a command without a reply is sent again: a job is published twice
	client, logger := redis.NewClient(options), watermill.NewStdLogger(false, false)

	if mode == "produce" {
		publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, logger)
		check(err)
		number, err := strconv.Atoi(name)
		check(err)
		for n := range number {
			check(publisher.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(n)))))
		}
		return
	}
	subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: client, ConsumerGroup: "billing", Consumer: name,
		// The reaper recovers: watermill claims no entry of another consumer, and deletes no consumer.
		ShouldClaimPendingMessage: func(redis.XPendingExt) bool { return false },
		MaxIdleTime:               never,
		CheckConsumersInterval:    never,
	}, logger)
	check(err)
	jobs, err := subscriber.Subscribe(context.Background(), "orders")
	check(err)
	for job := range jobs {
		number := string(job.Payload)
		fmt.Println("start", number)
		for number == os.Getenv("HOLD") {
			time.Sleep(time.Minute)
		}
		fmt.Println("done", number)
		job.Ack() // after the work; Nack() runs the job again in this process, without end
	}
	log.Fatal("the subscription ended") // an entry of another form does that: let a supervisor start the process again
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
