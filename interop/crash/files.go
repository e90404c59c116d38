package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"viaduct/interop/internal/proc"
)

// listen has the address to listen at for each transport.
var listen = map[string]string{
	"vitcp": "vitcp://127.0.0.1:0/files", "iwarp": "iwarp://127.0.0.1:0", "fcvi": "fcvi://127.0.0.1:0/files",
	"sdp": "sdp://127.0.0.1:0", "tcp": "tcp://127.0.0.1:0",
}

var transports = []string{"vitcp", "iwarp", "fcvi", "sdp", "tcp"}

// points returns all cases, in the order of their turns.
func points() (all []point) {
	for _, t := range transports {
		for _, victim := range []string{"client", "server"} {
			all = append(all,
				point{"put, " + t + ", " + victim, func(c *campaign, dir string) (string, error) { return c.put(dir, t, victim) }},
				point{"get, " + t + ", " + victim, func(c *campaign, dir string) (string, error) { return c.get(dir, t, victim) }})
		}
	}
	for _, t := range []string{"vitcp", "iwarp", "sdp"} {
		for _, victim := range []string{"client", "server", "interrupt"} {
			all = append(all, point{"tree, " + t + ", " + victim, func(c *campaign, dir string) (string, error) { return c.tree(dir, t, victim) }})
		}
	}
	return append(all,
		point{"handover, old", func(c *campaign, dir string) (string, error) { return c.handover(dir, false) }},
		point{"handover, new", func(c *campaign, dir string) (string, error) { return c.handover(dir, true) }},
		point{"fabric, fabric", func(c *campaign, dir string) (string, error) { return c.fabric("fabric") }},
		point{"fabric, member", func(c *campaign, dir string) (string, error) { return c.fabric("member") }})
}

// fileSize is large enough for a kill in the middle of a transfer.
const fileSize = 12 << 20

// content makes a file of random bytes.
func (c *campaign) content(path string) ([]byte, error) {
	b := make([]byte, fileSize+c.r.IntN(100_000))
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(c.r.Uint32())
	}
	rand.NewChaCha8(seed).Read(b)
	return b, os.WriteFile(path, b, 0o644)
}

// moment returns a random time, at most 1.2 times the undisturbed duration of the case name.
func (c *campaign) moment(name string) time.Duration {
	return time.Duration(c.r.Int64N(int64(c.usual[name]) * 12 / 10))
}

// learn measures the undisturbed duration of the case name, unless the duration is known.
func (c *campaign) learn(name string, f func() error) error {
	if c.usual[name] > 0 {
		return nil
	}
	begin := time.Now()
	if err := f(); err != nil {
		return err
	}
	c.usual[name] = time.Since(begin)
	return nil
}

// whole returns true if the file at path has exactly the bytes want, and false if there is no file.
// Other contents are an error.
func whole(path string, want []byte) (there bool, err error) {
	got, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !bytes.Equal(got, want):
		return true, fmt.Errorf("%s has %d bytes of %d, or other ones", filepath.Base(path), len(got), len(want))
	}
	return true, nil
}

// put stores a file while client or server is killed.
func (c *campaign) put(dir, transport, victim string) (found string, err error) {
	root, file := filepath.Join(dir, "root"), filepath.Join(dir, "file")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	want, err := c.content(file)
	if err != nil {
		return "", err
	}
	serve := []string{"serve", "--root", root, "--writable", "--listen", listen[transport]}
	server, url, err := c.serve(serve...)
	if err != nil {
		return "", err
	}
	defer func() { server.Kill() }()
	if err := c.learn("put "+transport, func() error { return c.do("put", file, url+"/usual") }); err != nil {
		return "", err
	}
	os.Remove(filepath.Join(root, "usual"))
	client, err := c.start("put", file, url+"/stored")
	if err != nil {
		return "", err
	}
	defer func() { client.Kill() }()
	time.Sleep(c.moment("put " + transport))
	if victim == "client" {
		client.Kill()
	} else {
		server.Kill()
		client.Wait(proc.Patience) // the client may end with or without an error
		if server, url, err = c.again(append(serve[:len(serve)-1], url)...); err != nil {
			return "", err
		}
	}
	stored := filepath.Join(root, "stored")
	there, err := whole(stored, want)
	if err != nil {
		return "", err
	}
	if victim == "client" { // the server detects the end of the client, and removes the partial file
		for end := time.Now().Add(proc.Patience); ; time.Sleep(20 * time.Millisecond) {
			left, err := os.ReadDir(root)
			if err != nil {
				return "", err
			}
			var names []string
			for _, e := range left {
				if e.Name() != "stored" {
					names = append(names, e.Name())
				}
			}
			if len(names) == 0 {
				break
			}
			if time.Now().After(end) {
				return "", fmt.Errorf("left behind: %s", strings.Join(names, ", "))
			}
		}
		if there, err = whole(stored, want); err != nil { // the server may have received everything
			return "", err
		}
	}
	if err := c.do("put", file, url+"/stored"); err != nil {
		return "", fmt.Errorf("again: %w", err)
	}
	if ok, err := whole(stored, want); err != nil || !ok {
		return "", fmt.Errorf("after storing it again: %t, %w", ok, err)
	}
	if there {
		return "killed when the file was there, and whole", nil
	}
	return "no file was there, and it could be stored", nil
}

// get fetches a file while client or server is killed.
func (c *campaign) get(dir, transport, victim string) (found string, err error) {
	root, copied := filepath.Join(dir, "root"), filepath.Join(dir, "copy")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	want, err := c.content(filepath.Join(root, "file"))
	if err != nil {
		return "", err
	}
	serve := []string{"serve", "--root", root, "--listen", listen[transport]}
	server, url, err := c.serve(serve...)
	if err != nil {
		return "", err
	}
	defer func() { server.Kill() }()
	if err := c.learn("get "+transport, func() error { return c.do("get", url+"/file", "-o", filepath.Join(dir, "usual")) }); err != nil {
		return "", err
	}
	client, err := c.start("get", url+"/file", "-o", copied)
	if err != nil {
		return "", err
	}
	defer func() { client.Kill() }()
	time.Sleep(c.moment("get " + transport))
	if victim == "client" {
		client.Kill()
	} else {
		server.Kill()
		client.Wait(proc.Patience)
		if server, url, err = c.again(append(serve[:len(serve)-1], url)...); err != nil {
			return "", err
		}
	}
	there, err := whole(copied, want)
	if err != nil {
		return "", err
	}
	part, err := os.Stat(copied + ".part")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := c.do("get", url+"/file", "-o", copied, "--resume"); err != nil {
		return "", fmt.Errorf("resumed: %w", err)
	}
	if ok, err := whole(copied, want); err != nil || !ok {
		return "", fmt.Errorf("after resuming: %t, %w", ok, err)
	}
	switch {
	case there:
		return "killed when the copy was there, and whole", nil
	case part != nil && part.Size() > 0:
		return "a part was there, and get went on with it", nil
	}
	return "nothing was there, and it could be fetched", nil
}
