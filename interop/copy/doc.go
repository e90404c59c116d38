// Copy tests copying a directory with many small files and a large sparse file, with and without
// faults.
//
//	go run ./interop/copy                  # 200 files in 20 directories and one of 128 MiB
//	go run ./interop/copy -each            # a copy for each fault
//	go run ./interop/copy -long            # 10,000 files in 1,000 directories and one of 20 GiB
//	go run ./interop/copy -long -run sdp   # cases whose name matches
//	go run ./interop/copy -beside [-long]  # measures, compared with rclone and cp
//
// Over vitcp, iwarp and sdp, put -r stores the directory, and a fault ends the copy early: a full
// disk, SIGINT to the client, or SIGKILL to the client or the server, each once in the small files
// and once in the large one. Then the program makes room, restarts an ended server, and continues
// the copy until the next fault, by put -r --resume and sync in turns. At the end the copy equals
// the source, sync finds nothing to do, the server has no other file, and the source is unchanged.
//
// The full disk is a separate file system. Only root on Linux can mount the disk; otherwise the
// cases are skipped, with a message.
//
// With -beside the same directory and file are copied without faults, and the speed is compared
// with rclone with its own WebDAV server and with cp through a pipe. The methods take turns, so
// that other load of the machine affects each equally; the table has the medians. cp writes the
// large file in full, so the file system of -dir must have room for the full length. At the end the
// program removes all created files.
package main
