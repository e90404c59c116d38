// Command rxe tries programs of RDMA on the RoCE device of "viaduct run --rdma --device rxe0": those that
// connect queue pairs themselves, those of rdma_cm in the form of RoCE, pyverbs, UCX and MPI. All ends run
// under one supervisor, as an unprivileged user. Programs that are not installed are skipped, and named.
package main
