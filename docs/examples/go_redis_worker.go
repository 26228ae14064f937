// A go-redis worker beside a reaper.
// REDIS_URL=… go run go_redis_worker.go produce 10 | work <consumer>
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, mode, name := context.Background(), os.Args[1], os.Args[2]
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	check(err)
	options.MaxRetries = -1 // else a command without a reply is sent again: XADD adds its job twice
	client := redis.NewClient(options)

	if mode == "produce" {
		number, err := strconv.Atoi(name)
		check(err)
		for n := range number {
			check(client.XAdd(ctx, &redis.XAddArgs{Stream: "orders", Values: []any{"number", n}}).Err())
		}
		return
	}
	for {
		streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "billing", Consumer: name, Streams: []string{"orders", ">"}, Count: 1, Block: time.Second,
		}).Result()
		if errors.Is(err, redis.Nil) {
			continue // no job within the second
		}
		check(err)
		for _, entry := range streams[0].Messages {
			fmt.Println("start", entry.Values["number"])
			for entry.Values["number"] == os.Getenv("HOLD") {
				time.Sleep(time.Minute)
			}
			fmt.Println("done", entry.Values["number"])
			check(client.XAck(ctx, "orders", "billing", entry.ID).Err()) // after the work; a failed job stays pending
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err) // the process ends; a supervisor starts it again, under a new name
	}
}
