// Command run tests viaduct run with unmodified programs:
//
//	go run ./interop/run                        # every program that is installed, as this user and as an unprivileged one
//	go run ./interop/run -only curl             # trials whose name contains curl
//	go run ./interop/run -only beside -busy 15m # sshd and sftp for that long, while three busy loops run
//	go run ./interop/run -cost                  # costs of run, compared with the same programs without run; see bench/run.sh
//
// Server and client run under viaduct run, with SDP between them; no connection may stay plain TCP.
// Files are compared byte by byte, and servers that show the addresses of clients must show the
// true addresses. Trials of a missing program are skipped, and the program is named.
package main
