// Command 9p serves a directory, or any other fs.FS, to Linux's 9P client over RDMA, to be read:
//
//	mount -t 9p -o trans=rdma,port=5640,version=9p2000.L,msize=65536,ro HOST /mnt
//
// Each message of 9P is a single Send: length, type, tag, fields. Files of the fs.FS need ReadAt.
package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"log"
	"os"
	"path"

	"viaduct/iwarp"
)

const msize, depth = 65536, 64 // length of a message, and number of receives; the client has 32 requests outstanding

var le = binary.LittleEndian

func main() {
	device := iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: true})
	l, err := iwarp.Listen(":5640", &iwarp.Config{Device: device, RecvDepth: depth, EndWithPeer: true})
	for err == nil {
		var r *iwarp.Request
		if r, err = l.AcceptRequest(context.Background()); err == nil {
			go func() { log.Print(r.RemoteAddr(), ": ", serve(r, os.DirFS(os.Args[1]))) }()
		}
	}
	log.Fatal(err)
}

// serve answers messages until the client disconnects.
func serve(r *iwarp.Request, fsys fs.FS) (err error) {
	fids, buffers := make(map[uint32]string), make([][msize]byte, depth)
	receive := func(q *iwarp.QueuePair, i uint64) error {
		return q.PostRecv(iwarp.RecvWR{ID: i, SG: []iwarp.SGE{iwarp.Buf(buffers[i][:])}})
	}
	for i := range uint64(depth) { // posted before the client may send
		err = errors.Join(err, receive(r.QueuePair(), i))
	}
	q, refused := r.Accept(nil)
	if err = errors.Join(err, refused); err != nil {
		return err
	}
	defer q.Close()
	for c := range q.RecvCQ().All(context.Background()) {
		if c.Err() != nil {
			break
		}
		b := buffers[c.ID][:]
		clear(b[c.Len:]) // missing fields are zero
		reply, err := answer(fsys, fids, b[4], b[7:], []byte{0, 0, 0, 0, b[4] + 1, b[5], b[6]})
		if err != nil { // Rlerror, with ENOENT or EIO
			reply = put([]byte{0, 0, 0, 0, 7, b[5], b[6]}, map[bool]uint32{true: 2, false: 5}[errors.Is(err, fs.ErrNotExist)])
		}
		le.PutUint32(reply, uint32(len(reply)))
		if receive(q, c.ID) != nil || q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(reply)}, Unsignaled: true}) != nil {
			break
		}
	}
	return q.Err()
}

// answer appends the response to a request with the fields f to b. fids are the names of the files
// the client has walked to.
func answer(fsys fs.FS, fids map[uint32]string, kind byte, f, b []byte) ([]byte, error) {
	fid, off, count := le.Uint32(f), le.Uint64(f[4:]), int64(min(le.Uint32(f[12:]), msize-11))
	switch kind {
	case 100: // Tversion, which has the message size at this offset
		return text(put(b, min(fid, msize)), "9P2000.L"), nil
	case 104: // Tattach
		fids[fid] = "."
	case 120: // Tclunk
		delete(fids, fid)
		fallthrough
	case 108: // Tflush: all earlier requests were answered
		return b, nil
	}
	name := fids[fid]
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return b, err
	}
	switch kind {
	case 104:
		return put(b, qid(name, info.IsDir())), nil
	case 12: // Tlopen
		return put(b, qid(name, info.IsDir()), uint32(0)), nil
	case 24: // Tgetattr: the file belongs to root and has one link, blocks of 4 KiB and one time
		mode := map[bool]uint32{false: 0o100000, true: 0o040000}[info.IsDir()] | uint32(info.Mode().Perm())
		size, at := uint64(info.Size()), uint64(info.ModTime().Unix())
		return put(b, uint64(0x7ff), qid(name, info.IsDir()), mode, [8]byte{},
			[]uint64{1, 0, size, 4096, (size + 511) / 512, at, 0, at, 0, at, 0, 0, 0, 0, 0}), nil
	case 110: // Twalk
		b = append(b, f[8:10]...)
		to, n, f := le.Uint32(f[4:]), le.Uint16(f[8:]), f[10:]
		for ; n > 0 && len(f) > 2; n-- {
			k := min(int(le.Uint16(f)), len(f)-2)
			name, f = cmp.Or(path.Join("/", name, string(f[2:][:k]))[1:], "."), f[2+k:]
			if info, err = fs.Stat(fsys, name); err != nil {
				return b, err
			}
			b = put(b, qid(name, info.IsDir()))
		}
		fids[to] = name
		return b, nil
	case 40: // Treaddir: returns entries from number off on
		entries, err := fs.ReadDir(fsys, name)
		b = put(b, uint32(0))
		for i := off; i < uint64(len(entries)) && int64(len(b)-11+24+len(entries[i].Name())) <= count; i++ {
			e := entries[i]
			b = text(put(b, qid(path.Join(name, e.Name()), e.IsDir()), i+1, uint8(0)), e.Name())
		}
		le.PutUint32(b[7:], uint32(len(b)-11))
		return b, err
	case 116: // Tread
		file, err := fsys.Open(name)
		if err != nil {
			return b, err
		}
		defer file.Close()
		data, err := io.ReadAll(io.NewSectionReader(file.(io.ReaderAt), int64(off), count))
		return put(b, uint32(len(data)), data), err
	}
	return b, errors.ErrUnsupported
}

// qid returns the identity of a file.
func qid(name string, isDir bool) (id [13]byte) {
	h := fnv.New64a()
	h.Write([]byte(name))
	h.Sum(id[:5]) // only the path is set, because files have no versions
	id[0] = map[bool]byte{true: 0x80}[isDir]
	return id
}
func text(b []byte, s string) []byte { return append(put(b, uint16(len(s))), s...) }

func put(b []byte, values ...any) []byte {
	for _, v := range values {
		b, _ = binary.Append(b, le, v)
	}
	return b
}
