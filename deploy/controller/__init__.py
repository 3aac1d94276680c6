"""The optional controller of worker pools on Kubernetes: what Deployments cannot do for a fleet.

A `WorkerPool` (`worker_pool.yaml`) names a Deployment and how many workers it shall have. Deployments create,
replace and delete the pods. The controller holds two levers:

- the readiness gate `baton.dev/in-service` of each pod. A rollout goes on when a new pod is ready, and a pod
  is ready only once routers route to its worker. Before a new pod joins, the old one whose drain is cheapest
  is taken out of service, so that the Deployment deletes that one.
- the Deployment's replicas. Scaling up is immediate; scaling down takes one worker in ten at a time, and goes
  on when routers no longer list what left.

All that it remembers is in the objects of the API server, so it can die at any time.

`observed` has what is seen, `obstacles` what forbids every step, `decide` the next steps and `report` the
status. These are pure. `reading` converts objects of the API server, `cluster` keeps them, `routers` watches
the fleet, and `writing` carries out steps. `reconcile` is the loop, `handlers` what kopf calls, `config` the
flags, and `__main__` the program.
"""
