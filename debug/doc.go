// Package debug makes the connections of a process visible to "viaduct ps" and "viaduct stat". A
// program opens a status socket and registers its connections:
//
//	s, err := debug.Listen(debug.Config{Program: "replicator"})
//	defer s.Close()
//	s.WatchConn(conn)     // an *sdp.Conn, or any net.Conn
//	s.WatchQueuePair(qp)  // a stream of package iwarp
//	s.WatchVI(v)          // a connected VI
//
// The two commands then list the process together with their own. With the flag --json the commands
// print the list as JSON, for use by programs.
//
// The socket is in the user's run directory, for this user alone. Nothing is counted or sent unless
// a command asks. Watching a connection needs no goroutine, and does not keep an ended connection
// alive.
package debug
