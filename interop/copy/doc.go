// Copy tries the copying of a directory with many small files and a large sparse one.
//
//	go run ./interop/copy                  # 200 files in 20 directories and one of 128 MiB
//	go run ./interop/copy -each            # a copy for each fault
//	go run ./interop/copy -long            # 10,000 files in 1,000 directories and one of 20 GiB
//	go run ./interop/copy -long -run sdp   # cases whose name matches
//	go run ./interop/copy -beside [-long]  # measures, beside rclone and cp
//
// Over vitcp, iwarp and sdp, put -r stores the directory and ends before it is done: by a
// disk that is full, SIGINT to the client, SIGKILL to the client or the server, each once
// among the small files and once in the large one. Room is made, a server that is gone is
// started again, and the copy is gone on with, by put -r --resume and sync in turns, until
// the next fault. At the end both sides are the same, sync finds nothing to do, nothing else
// is at the server, and nothing has come into the source.
//
// The full disk is a file system of its own, which only root on Linux can mount; without
// it those cases are skipped, with a line that says so.
//
// With -beside the same directory and file are copied without faults, beside rclone with its own
// WebDAV server and cp through a pipe. The rounds take turns, so that what else the
// machine does meets each alike; the table has the medians. cp writes the large file out
// in full: so much has to be free below -dir, where nothing is left.
package main
