<?php

// A Symfony Messenger worker beside a reaper. An application configures the same by its DSN and `messenger:consume`.
// REDIS_URL=… php symfony_messenger_worker.php produce 10 | work <consumer>

use Symfony\Component\Messenger\Bridge\Redis\Transport\{Connection, RedisTransport};
use Symfony\Component\Messenger\{Envelope, MessageBus, Worker};
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;

require 'Symfony/Component/Messenger/autoload.php'; // Debian's packages; with Composer: vendor/autoload.php

final class Bill
{
    public function __construct(public int $number)
    {
    }
}

[, $mode, $name] = $argv;
// The path of Messenger's address is stream, group and consumer, and no database number (that is the option dbindex).
$server = preg_replace('#/\d*$#', '', getenv('REDIS_URL'));
$transport = new RedisTransport(Connection::fromDsn("$server/orders/billing/$name", [
    'redeliver_timeout' => 10 ** 9, // seconds: the reaper recovers, and Messenger never does
    'delete_after_ack' => true, // the default from Symfony 6.0: the stream has one group
]));

if ('produce' === $mode) {
    for ($number = 0; $number < (int) $name; ++$number) {
        $transport->send(new Envelope(new Bill($number)));
    }
    exit;
}

$handler = function (Bill $bill): void {
    echo "start $bill->number\n";
    while (getenv('HOLD') === (string) $bill->number) {
        sleep(60);
    }
    echo "done $bill->number\n";
};
$bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([Bill::class => [$handler]]))]);
// It acknowledges after the handler, and when the handler throws: a retry is a new message.
(new Worker(['orders' => $transport], $bus))->run();
