package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"viaduct/interop/internal/proc"
)

// Files of a tree. Short files make kills happen between files as well as within a file.
const (
	treeDirs  = 8
	treeFiles = 5 // files in each directory
	treeSize  = 4 << 10
)

// tree stores a directory while the client is interrupted by SIGINT, or client or server is killed.
// Every stored file is complete then, and sync completes the copy.
func (c *campaign) tree(dir, transport, victim string) (found string, err error) {
	root, source := filepath.Join(dir, "root"), filepath.Join(dir, "tree")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	want := map[string][]byte{}
	for d := range treeDirs {
		name := fmt.Sprintf("d%02d", d)
		if err := os.MkdirAll(filepath.Join(source, name), 0o755); err != nil {
			return "", err
		}
		for f := range treeFiles {
			b := make([]byte, 1+c.r.IntN(treeSize))
			for i := range b {
				b[i] = byte(c.r.Uint32())
			}
			rel := filepath.Join(name, fmt.Sprint(f))
			want[rel] = b
			if err := os.WriteFile(filepath.Join(source, rel), b, 0o644); err != nil {
				return "", err
			}
		}
	}
	serve := []string{"serve", "--root", root, "--writable", "--listen", listen[transport]}
	server, url, err := c.serve(serve...)
	if err != nil {
		return "", err
	}
	defer func() { server.Kill() }()
	if err := c.learn("tree "+transport, func() error { return c.do("put", "-r", source, url+"/usual") }); err != nil {
		return "", err
	}
	if err := os.RemoveAll(filepath.Join(root, "usual")); err != nil {
		return "", err
	}
	client, err := c.start("put", "-r", source, url+"/")
	if err != nil {
		return "", err
	}
	defer func() { client.Kill() }()
	time.Sleep(c.moment("tree " + transport))
	switch victim {
	case "client":
		client.Kill()
	case "interrupt":
		client.Interrupt()
		client.Wait(proc.Patience) // the client may end with or without an error
	default:
		server.Kill()
		client.Wait(proc.Patience)
		if server, url, err = c.again(append(serve[:len(serve)-1], url)...); err != nil {
			return "", err
		}
	}
	stored := filepath.Join(root, "tree")
	if err := c.do("sync", source, url+"/tree"); err != nil {
		return "", fmt.Errorf("sync: %w", err)
	}
	if err := c.do("sync", source, url+"/tree"); err != nil { // afterwards the server has detected the end of the first client
		return "", fmt.Errorf("sync again: %w", err)
	}
	if err := server.End(); err != nil {
		return "", fmt.Errorf("the server: %w", err)
	}
	n := 0
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(stored, p)
		if err != nil {
			return err
		}
		got, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		b, ok := want[rel]
		switch {
		case !ok:
			return fmt.Errorf("left behind: %s", p)
		case !bytes.Equal(got, b):
			return fmt.Errorf("%s has %d bytes of %d, or other ones", rel, len(got), len(b))
		}
		n++
		return nil
	})
	if err == nil && n != len(want) {
		err = fmt.Errorf("%d files of %d", n, len(want))
	}
	return "sync has made it whole", err
}
