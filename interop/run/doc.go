// Command run tries viaduct run with programs that know nothing of it:
//
//	go run ./interop/run                        # every program that is installed, as this user and as an unprivileged one
//	go run ./interop/run -only curl             # those whose name contains curl
//	go run ./interop/run -only beside -busy 15m # sshd and sftp for that long, beside three busy loops
//	go run ./interop/run -cost                  # what it costs, beside the same programs without it; see bench/run.sh
//
// Server and client run under viaduct run, with SDP between them; no connection
// may stay plain TCP. Files are compared byte by byte, and servers that show the
// addresses of their clients have to show the true one. A program that is not
// installed is skipped, and named.
package main
