// Package status reports the connections of a process through a socket, for "viaduct ps" and
// "viaduct stat". [Listen] opens the socket, the methods of [Server] register connections and
// listeners, and [List] asks all processes of the user. Package debug makes the package available
// to other programs.
//
// The socket is in the user's run directory, for this user alone. Nothing is counted or sent unless
// a client asks. Watching a connection needs no goroutine, and does not keep an ended connection
// alive.
package status
