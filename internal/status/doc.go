// Package status reports the connections of a process through a socket that "viaduct ps" and
// "viaduct stat" read. [Listen] opens the socket, the methods of [Server] register connections and
// listeners, and [List] asks all processes of this user. Package debug makes this package available
// to other programs.
//
// The socket is in the user's run directory, for this user alone. Nothing is counted or sent unless
// a client asks for it. Watching a connection needs no goroutine, and does not keep the connection
// alive once it has ended.
package status
