"""The actors of the world, which run product code: producers, both kinds of workers, replicas and operators."""
