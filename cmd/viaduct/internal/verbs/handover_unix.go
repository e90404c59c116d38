//go:build unix

package verbs

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A handoverConn carries JSON messages with open files between two processes. A message begins with
// 8 bytes: the length of the text and the number of files. The files are ancillary data of the 8
// bytes. The text follows.
type handoverConn struct{ c *net.UnixConn }

// maxHandover bounds a message. A message includes the buffered bytes of a pair of connections.
const maxHandover = 64 << 20

func (h *handoverConn) send(v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var head [8]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(b)))
	binary.BigEndian.PutUint32(head[4:], uint32(len(files)))
	if err := withFDs(files, nil, func(fds []int) error {
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		n, on, err := h.c.WriteMsgUnix(head[:], oob, nil)
		if err == nil && (n != len(head) || on != len(oob)) {
			err = io.ErrShortWrite
		}
		return err
	}); err != nil {
		return err
	}
	_, err = h.c.Write(b)
	return err
}

// withFDs calls f with the descriptors of files. It does not use File.Fd, because Fd would make the
// files blocking, also for another process with the same sockets.
func withFDs(files []*os.File, fds []int, f func([]int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	rc, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := rc.Control(func(fd uintptr) { ferr = withFDs(files[1:], append(fds, int(fd)), f) }); err != nil {
		return err
	}
	return ferr
}

func (h *handoverConn) receive(v any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	var head [8]byte
	oob := make([]byte, unix.CmsgSpace(4*64))
	n, on, _, _, err := h.c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if on > 0 {
		if files, err = parseFiles(oob[:on]); err != nil {
			return files, err
		}
	}
	if n == 0 {
		return files, io.EOF
	}
	if _, err := io.ReadFull(h.c, head[n:]); err != nil {
		return files, err
	}
	size, count := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
	if size > maxHandover || int(count) != len(files) {
		return files, fmt.Errorf("handover: message of %d bytes with %d files, %d came", size, count, len(files))
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(h.c, b); err != nil {
		return files, err
	}
	return files, json.Unmarshal(b, v)
}

func parseFiles(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			unix.SetNonblock(fd, true)
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}

// dialHandover connects to the process with a handover socket. It returns nil without an error if
// there is none.
func dialHandover(path string) (*handoverConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	return &handoverConn{c}, nil
}

// listenHandover opens the socket. It replaces the socket of a dead process.
func listenHandover(path string) (*net.UnixListener, error) {
	old := unix.Umask(0o177) // only the owner may connect, because a process that connects gets our connections
	defer unix.Umask(old)
	os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	l.SetUnlinkOnClose(false) // the successor's socket has the same name
	return l, nil
}
