"""How blocks get from a sender's pool into a receiver's.

    transport  the interface, and the modes that a worker can be set to
    cuda_ipc   from GPU to GPU on one host
    shm        from host memory on the same host, mapped
    nixl       over RDMA or TCP, by NIXL
    grpc       anywhere

`kvtransfer.receiving.peers` chooses among them.
"""
