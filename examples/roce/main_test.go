package main

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// TestMain runs the example instead of the tests if the environment variable is set.
func TestMain(m *testing.M) {
	if os.Getenv("VIADUCT_EXAMPLE") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

func example(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "VIADUCT_EXAMPLE=1")
	cmd.Stderr = os.Stderr
	return cmd
}

// TestExample checks that the example writes into the memory of another process of the example, and
// reads the bytes back.
func TestExample(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: this system has one loopback address, and two processes need two")
	}
	local := func() string {
		return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))}).String()
	}
	at := local()
	server := example(at)
	said, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Process.Kill()
	r := bufio.NewReader(said)
	if line, err := r.ReadString('\n'); line != "listening\n" {
		t.Fatal(line, err)
	}
	out, err := example(local(), at+":7175").Output()
	if err != nil || !bytes.Contains(out, []byte(`read back "hello from Go"`)) {
		t.Errorf("%q, %v", out, err)
	}
	if line, err := r.ReadString('\n'); !strings.Contains(line, `"hello from Go"`) {
		t.Errorf("%q, %v", line, err)
	}
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}
