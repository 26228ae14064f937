// A Spring Data Redis worker (with Lettuce) beside a reaper.
// REDIS_URL=… java SpringDataRedisWorker.java produce 10 | work <consumer>

import java.time.Duration;
import java.util.Map;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.connection.stream.Consumer;
import org.springframework.data.redis.connection.stream.MapRecord;
import org.springframework.data.redis.connection.stream.ReadOffset;
import org.springframework.data.redis.connection.stream.StreamOffset;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.data.redis.stream.StreamListener;
import org.springframework.data.redis.stream.StreamMessageListenerContainer;
import org.springframework.data.redis.stream.StreamMessageListenerContainer.StreamMessageListenerContainerOptions;
import org.springframework.data.redis.stream.StreamMessageListenerContainer.StreamReadRequest;

public class SpringDataRedisWorker {
    public static void main(String[] args) {
        var redis = LettuceConnectionFactory.createRedisConfiguration(System.getenv("REDIS_URL"));
        var factory = new LettuceConnectionFactory(redis);
        factory.afterPropertiesSet();
        factory.start();
        var template = new StringRedisTemplate(factory);

        if (args[0].equals("produce")) {
            for (int number = 0; number < Integer.parseInt(args[1]); number++)
                template.opsForStream().add("orders", Map.of("number", String.valueOf(number)));
            factory.destroy();
            return;
        }
        StreamListener<String, MapRecord<String, String, String>> listener = job -> {
            String number = job.getValue().get("number");
            System.out.println("start " + number);
            while (number.equals(System.getenv("HOLD"))) sleep();
            System.out.println("done " + number);
            template.opsForStream().acknowledge("billing", job); // after the work; a failed job stays pending
        };
        var options = StreamMessageListenerContainerOptions.builder()
            .batchSize(1) // COUNT: without it, a read takes all ready entries
            .pollTimeout(Duration.ofSeconds(1))
            .build();
        var container = StreamMessageListenerContainer.create(factory, options);
        var request = StreamReadRequest.builder(StreamOffset.create("orders", ReadOffset.lastConsumed()))
            .consumer(Consumer.from("billing", args[1]))
            .autoAcknowledge(false)
            .cancelOnError(error -> false) // by default, the first error ends the subscription
            .build();
        container.register(request, listener);
        container.start();
        while (true) sleep();
    }

    private static void sleep() {
        try {
            Thread.sleep(60_000);
        } catch (InterruptedException stopped) {
            System.exit(1);
        }
    }
}
