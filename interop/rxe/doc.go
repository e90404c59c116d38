// Command rxe tries RDMA programs on the RoCE device of "viaduct run --rdma --device rxe0": those that
// connect queue pairs themselves, those that use rdma_cm in the form of RoCE, pyverbs, UCX and MPI. All
// ends run under one supervisor, as an unprivileged user. What is not installed is skipped, and named.
//
//	go run ./interop/rxe                              # the most telling options
//	go run ./interop/rxe -long                        # all options
//	go run ./interop/rxe -only pingpong -runs 100     # some of them again and again; a table at the end
//	go run ./interop/rxe -busy 3 -runs 200            # beside busy loops
//	go run ./interop/rxe -figures -runs 5             # what it costs; best and median of the runs
//	go run ./interop/rxe -only 'ibv_|ping' -rdma-core DIR   # with a build of another rdma-core
package main
