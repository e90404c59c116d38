// Command rxe tests RDMA programs on the RoCE device of "viaduct run --rdma --device rxe0":
// programs that connect queue pairs themselves, programs on rdma_cm over RoCE, pyverbs, UCX and
// MPI. All ends run under one supervisor, as an unprivileged user. Trials of missing programs are
// skipped, and the programs are named.
//
//	go run ./interop/rxe                              # the most important options
//	go run ./interop/rxe -long                        # all options
//	go run ./interop/rxe -only pingpong -runs 100     # some trials many times, with a table at the end
//	go run ./interop/rxe -busy 3 -runs 200            # with busy loops running
//	go run ./interop/rxe -figures -runs 5             # costs: best and median of the runs
//	go run ./interop/rxe -only 'ibv_|ping' -rdma-core DIR   # with a build of another rdma-core
package main
