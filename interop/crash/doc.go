// Crash kills processes of the command by SIGKILL at random times, and checks the remaining state.
//
//	go run ./interop/crash               # 100 points
//	go run ./interop/crash -n 500 -run put
//
// The cases take turns:
//
//   - put: the client or the server is killed. The stored file is absent or complete; storing it
//     again succeeds.
//   - get: the client or the server is killed. The copy is absent or complete; get --resume
//     continues and succeeds.
//   - tree: a client storing a directory is interrupted or killed, or the server is killed. sync
//     completes the copy; every file is complete and no other file is left.
//   - handover: one of two proxies is killed while connections move between the proxies. The bytes
//     returned through a connection are a prefix of the sent bytes, and a proxy started afterwards
//     serves at the same address.
//   - fabric: the fabric or a member is killed. After the restart, the members reach each other
//     again.
//
// The cases cover every transport and both roles. The time of a kill is random, within the duration
// of the same operation without a kill.
package main
