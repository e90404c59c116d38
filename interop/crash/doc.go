// Crash kills processes of the command by SIGKILL at random points of what they
// do, and looks at what is left.
//
//	go run ./interop/crash               # 100 points
//	go run ./interop/crash -n 500 -run put
//
// The cases take turns:
//
//   - put: the client or the server is killed. Under the name of the file there is
//     nothing or all of it; storing it again succeeds.
//   - get: the client or the server is killed. Under the name of the copy there is
//     nothing or all of it; get --resume goes on and succeeds.
//   - tree: a client that stores a directory is interrupted or killed, or its server
//     is. sync makes the copy complete; every file is whole and nothing else is left.
//   - handover: one of the two proxies is killed while connections move from one to
//     the other. What comes back through a connection is the beginning of what was
//     sent, and a proxy that is started then serves at the same address.
//   - fabric: the fabric is killed, or a member. When it is there again the members
//     reach each other again.
//
// Every transport has its turn, both roles are killed, and the moment is drawn
// from the time that the same thing took undisturbed.
package main
