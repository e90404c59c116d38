// Package debug lets a process tell what its connections do. A program opens
// a status socket and names what is to be seen:
//
//	s, err := debug.Listen(debug.Config{Program: "replicator"})
//	defer s.Close()
//	s.WatchConn(conn)     // an *sdp.Conn, or any net.Conn
//	s.WatchQueuePair(qp)  // a stream of package iwarp
//	s.WatchVI(v)          // a connected VI
//
// "viaduct ps" and "viaduct stat" then show the process beside those of the
// command; with --json they are what a program reads.
//
// The socket is in the user's run directory, for this user alone. Nothing is
// counted or sent unless it is asked for, and watching a connection keeps
// neither a goroutine nor, once it has ended, the connection.
package debug
