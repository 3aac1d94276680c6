"""`python -m deploy.controller`: parse, build, run until a signal.

In a cluster, it acts as the service account of its pod; elsewhere as the user of the kubeconfig. Exit codes:
0 after a signal, 1 a part failed, 2 a setting is wrong.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import logging
import sys

import kopf
from kubernetes_asyncio.client import ApiClient
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from deploy.controller.cluster import Cluster
from deploy.controller.config import ControllerConfig, parse_config
from deploy.controller.handlers import handlers, settings
from deploy.controller.reconcile import Reconciler
from deploy.controller.routers import Routers
from deploy.controller.writing import Writer
from runtime.process.log import configure_logging

EXIT_CONFIG = 2
INTERRUPTED = 130


async def serve(config: ControllerConfig) -> None:
    """Run until a signal arrives. A part that fails ends the others."""
    try:
        load_incluster_config()  # type: ignore[no-untyped-call]
    except ConfigException:
        await load_kube_config()
    cluster, changed = Cluster(), asyncio.Event()
    routers = Routers(config.routers, config.credentials, changed.set)
    async with ApiClient() as api, asyncio.TaskGroup() as tasks:
        writer = Writer(api, config.namespace, cluster)
        reconciler = Reconciler(cluster, routers, writer, changed)
        parts = [tasks.create_task(part) for part in (routers.run(), reconciler.run())]
        registry = handlers(cluster, changed)

        @kopf.on.cleanup(registry=registry)
        def end(**_: object) -> None:
            for part in parts:
                part.cancel()

        await kopf.operator(
            registry=registry, settings=settings(), namespaces=[config.namespace], standalone=True
        )


def main() -> int:
    """Run the controller and return the exit code."""
    try:
        config = parse_config(sys.argv[1:])
        configure_logging(config.log_level, config.log_format, namespace=config.namespace)
        logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of each event of a watch
        asyncio.run(serve(config))
    except (ValueError, ConfigException) as error:
        print(error, file=sys.stderr)  # noqa: T201 -- one sentence for the person who started the controller
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
