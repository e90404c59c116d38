// Package status lets a process tell what its connections do, by a socket that
// "viaduct ps" and "viaduct stat" ask. [Listen] opens it, the methods of [Server] name
// what is to be seen, and [List] asks all processes of this user. Package debug is what
// other programs use of it.
//
// The socket is in the user's run directory, for this user alone. Nothing is
// counted or sent unless it is asked for, and watching a connection keeps
// neither a goroutine nor, once it has ended, the connection.
package status
