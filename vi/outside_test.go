package vi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// outsideMain is a program with a provider in its own module. It connects two VIs and sends a
// message.
const outsideMain = `package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"example.org/outside/memvi"
	"viaduct/vi"
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func open(p vi.Provider, name string) (*vi.NIC, *vi.Region, *vi.VI) {
	n, err := vi.Open(p, name, nil)
	check(err)
	r, err := n.RegisterMem(make([]byte, 64), vi.MemAttributes{})
	check(err)
	v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
	check(err)
	return n, r, v
}

func main() {
	ctx := context.Background()
	network := memvi.New()
	a, from, x := open(network, "mem0")
	b, to, y := open(network, "mem1")
	check(y.PostRecv(vi.NewRecv(to.Segment(0, 64))))
	at := vi.Address{Host: b.Query().LocalAddress, Discriminator: []byte("d")}
	done := make(chan error, 1)
	go func() {
		c, err := b.ConnectWait(ctx, at)
		if err == nil {
			err = c.Accept(ctx, y)
		}
		done <- err
	}()
	for {
		_, err := x.ConnectRequest(ctx, vi.Address{Host: a.Query().LocalAddress, Discriminator: []byte("d")}, at)
		if errors.Is(err, vi.ErrNoMatch) {
			continue // b does not wait for a connection yet
		}
		check(err)
		break
	}
	check(<-done)
	copy(from.Bytes(), "from outside")
	check(x.PostSend(vi.NewSend(from.Segment(0, 12))))
	d, err := y.RecvWait(ctx)
	check(err)
	fmt.Printf("%s\n", to.Bytes()[:d.Length])
}
`

// TestOutsideProvider: another module can implement [vi.Provider]. The test builds a module with a
// copy of internal/vitest/memvi, the provider behind TestSuite.
func TestOutsideProvider(t *testing.T) {
	testkit.Long(t, "5 s")
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	version := ""
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mod)) {
		if strings.HasPrefix(line, "go ") {
			version = line
		}
	}
	dir := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.work", fmt.Sprintf("%s\nuse (\n\t./outside\n\t%s\n)\n", version, root))
	write("outside/go.mod", "module example.org/outside\n\n"+version)
	write("outside/main.go", outsideMain)
	sources, err := filepath.Glob(filepath.Join(root, "internal/vitest/memvi/*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	for _, s := range sources {
		text, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join("outside/memvi", filepath.Base(s)), string(text))
	}
	cmd := exec.Command("go", "run", ".")
	cmd.Dir = filepath.Join(dir, "outside")
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"), "GOFLAGS=-mod=readonly", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "from outside\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
