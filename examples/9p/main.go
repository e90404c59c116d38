// Command 9p serves a directory, or any other fs.FS, to Linux's 9P client over RDMA, to be
// read:
//
//	mount -t 9p -o trans=rdma,port=5640,version=9p2000.L,msize=65536 HOST /mnt
//
// One message of 9P is one Send, in both directions; the client posts a receive for each
// response that it waits for.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"log"
	"os"
	"path"
	"strings"

	"viaduct/iwarp"
)

const (
	msize = 65536 // bytes of a message
	depth = 64    // receives; the client has 32 requests under way
	// Errors of Linux.
	noEntry, ioError, notSupported = 2, 5, 95
)

var le = binary.LittleEndian

// A session is a mount: fids are names of files that the client has walked to.
type session struct {
	fsys fs.FS
	fids map[uint32]string
}

func main() {
	listener, err := iwarp.Listen(":5640", &iwarp.Config{RecvDepth: depth, EndWithPeer: true,
		Device: iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: true})})
	if err != nil {
		log.Fatal(err)
	}
	for {
		request, err := listener.AcceptRequest(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			s := &session{os.DirFS(os.Args[1]), make(map[uint32]string)}
			log.Printf("%v: %v", request.RemoteAddr(), s.serve(request))
		}()
	}
}

// serve answers messages until the client goes.
func (s *session) serve(request *iwarp.Request) error {
	buffers := make([][]byte, depth)
	post := func(q *iwarp.QueuePair, i uint64) error {
		return q.PostRecv(iwarp.RecvWR{ID: i, SG: []iwarp.SGE{iwarp.Buf(buffers[i])}})
	}
	for i := range buffers { // before the client may send
		buffers[i] = make([]byte, msize)
		if err := post(request.QueuePair(), uint64(i)); err != nil {
			return err
		}
	}
	q, err := request.Accept(nil)
	if err != nil {
		return err
	}
	defer q.Close()
	for {
		c, err := q.RecvCQ().Wait(context.Background())
		if err != nil || c.Err() != nil {
			return q.Err()
		}
		m := buffers[c.ID][:c.Len]
		if len(m) < 7 || int(le.Uint32(m)) != len(m) {
			return errors.New("malformed message")
		}
		reply := s.answer(m[4], reader{m[7:]}, append(make([]byte, 5, 512), m[5], m[6])) // the tag
		le.PutUint32(reply, uint32(len(reply)))
		if err := errors.Join(post(q, c.ID), q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(reply)}})); err != nil {
			return err
		}
		for ok := true; ok; _, ok = q.SendCQ().Poll() { // what was sent is garbage now
		}
	}
}

// answer appends the body of the response to a request, and sets its type.
func (s *session) answer(kind byte, r reader, b []byte) []byte {
	b[4] = kind + 1
	if kind == 100 { // Tversion
		return text(le.AppendUint32(b, min(r.u32(), msize)), "9P2000.L")
	} else if kind == 108 { // Tflush: whatever it names was answered
		return b
	}
	fid := r.u32()
	if kind == 104 { // Tattach
		s.fids[fid] = "."
	}
	name, known := s.fids[fid]
	info, err := fs.Stat(s.fsys, name)
	if !known || err != nil {
		return failed(b, noEntry)
	}
	switch kind {
	case 104:
		return qid(b, name, info.IsDir())
	case 8: // Tstatfs
		b = append(b, make([]byte, 4+4+6*8)...)
		return le.AppendUint32(b, 255)
	case 12: // Tlopen
		return le.AppendUint32(qid(b, name, info.IsDir()), 0)
	case 24: // Tgetattr
		mode := uint32(info.Mode().Perm()) | 0o100000
		if info.IsDir() {
			mode ^= 0o140000
		}
		b = qid(le.AppendUint64(b, 0x7ff), name, info.IsDir())
		b = append(le.AppendUint32(b, mode), make([]byte, 8)...) // of root
		for _, v := range []uint64{1, 0, uint64(info.Size()), 4096, uint64(info.Size()+511) / 512} {
			b = le.AppendUint64(b, v)
		}
		for range 3 { // accessed, changed, and its inode
			b = le.AppendUint64(le.AppendUint64(b, uint64(info.ModTime().Unix())), uint64(info.ModTime().Nanosecond()))
		}
		return append(b, make([]byte, 32)...)
	case 110: // Twalk
		to, n := r.u32(), int(r.u16())
		b = le.AppendUint16(b, uint16(n))
		for range n {
			if name = path.Join(name, r.text()); strings.HasPrefix(name, "..") {
				name = "."
			}
			if info, err = fs.Stat(s.fsys, name); err != nil {
				return failed(b, noEntry)
			}
			b = qid(b, name, info.IsDir())
		}
		s.fids[to] = name
		return b
	case 40, 116: // Treaddir, Tread
		off, count := r.u64(), min(int(r.u32()), msize-11)
		b = append(b, 0, 0, 0, 0)
		if b, err = s.read(b, name, kind == 40, int64(off), count); err != nil {
			return failed(b, ioError)
		}
		le.PutUint32(b[7:], uint32(len(b)-11))
		return b
	case 120: // Tclunk
		delete(s.fids, fid)
		return b
	}
	return failed(b, notSupported)
}

// read appends count bytes of a file, or entries of a directory from number off on.
func (s *session) read(b []byte, name string, dir bool, off int64, count int) ([]byte, error) {
	if !dir {
		f, err := s.fsys.Open(name)
		if err != nil {
			return b, err
		}
		defer f.Close()
		at, ok := f.(io.ReaderAt)
		if !ok {
			return b, errors.ErrUnsupported
		}
		data := make([]byte, count)
		n, err := at.ReadAt(data, off)
		if err == io.EOF {
			err = nil
		}
		return append(b, data[:n]...), err
	}
	entries, err := fs.ReadDir(s.fsys, name)
	for i := int(min(off, int64(len(entries)))); i < len(entries) && len(b)-11+24+len(entries[i].Name()) <= count; i++ {
		e := entries[i]
		b = le.AppendUint64(qid(b, path.Join(name, e.Name()), e.IsDir()), uint64(i+1))
		b = text(append(b, 0), e.Name())
	}
	return b, err
}

// failed makes the response an Rlerror.
func failed(b []byte, errno uint32) []byte {
	b[4] = 7
	return le.AppendUint32(b[:7], errno)
}

// qid appends what tells a file from others.
func qid(b []byte, name string, dir bool) []byte {
	h := fnv.New64a()
	h.Write([]byte(name))
	kind := byte(0)
	if dir {
		kind = 0x80
	}
	return le.AppendUint64(append(b, kind, 0, 0, 0, 0), h.Sum64())
}

func text(b []byte, s string) []byte { return append(le.AppendUint16(b, uint16(len(s))), s...) }

// A reader takes fields from a message; those that are missing are zero.
type reader struct{ b []byte }

func (r *reader) take(n int) []byte {
	field := make([]byte, n)
	r.b = r.b[copy(field, r.b):]
	return field
}
func (r *reader) u16() uint16  { return le.Uint16(r.take(2)) }
func (r *reader) u32() uint32  { return le.Uint32(r.take(4)) }
func (r *reader) u64() uint64  { return le.Uint64(r.take(8)) }
func (r *reader) text() string { return string(r.take(int(r.u16()))) }
