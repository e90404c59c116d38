package iwarp

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// oneVariable is set in the environment of the process that has one processor.
const oneVariable = "VIADUCT_TEST_ONE_PROCESSOR"

// TestSameHostOneProcessor runs two processes on one processor. A process that polls without end
// there moves one message in each time slice of the scheduler, some 40 in a round, where TCP moves
// hundreds. In one of up to twenty rounds, shared memory must move at least a third as many as TCP.
// The bound is low because other programs use the processor too: single rounds give 0.25 to 2.
func TestSameHostOneProcessor(t *testing.T) {
	if os.Getenv(oneVariable) == "" {
		out, err := onOneProcessor(exec.Command("/proc/self/exe", "-test.v", "-test.run", "^TestSameHostOneProcessor$"))
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	if n := runtime.NumCPU(); n != 1 {
		t.Fatalf("%d processors", n)
	}
	best := 0.0
	for i := 0; i < 20 && best < 1.0/3; i++ {
		came := map[samehost.Policy]int64{}
		for _, policy := range []samehost.Policy{samehost.Require, samehost.Off} {
			var p pumper
			q, _, stop := p.withChild(t, true, policy, nil)
			ended := make(chan int, 1)
			go func() { ended <- p.run(q) }()
			testkit.Eventually(t, "messages come", func() bool { return p.came.Load() > 10 })
			before := p.came.Load()
			time.Sleep(150 * time.Millisecond)
			came[policy] = p.came.Load() - before
			stop()
			testkit.Await(t, "the stream ends", ended)
			q.Close()
		}
		t.Logf("%d messages through shared memory, %d by TCP", came[samehost.Require], came[samehost.Off])
		best = max(best, float64(came[samehost.Require])/float64(max(came[samehost.Off], 1)))
	}
	if best < 1.0/3 {
		t.Errorf("polling is in the way: %.2f times as many messages as by TCP", best)
	}
}

// onOneProcessor runs a command on one of the processors of this process.
func onOneProcessor(cmd *exec.Cmd) (out []byte, err error) {
	cmd.Env = append(os.Environ(), oneVariable+"=1")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // a new thread ends together with its set of processors
		var set, one unix.CPUSet
		if err = unix.SchedGetaffinity(0, &set); err != nil {
			return
		}
		for i := 0; one.Count() == 0; i++ {
			if set.IsSet(i) {
				one.Set(i)
			}
		}
		if err = unix.SchedSetaffinity(0, &one); err != nil {
			return
		}
		out, err = cmd.CombinedOutput()
		_ = unix.SchedSetaffinity(0, &set) // resets the main thread, which does not end
	}()
	<-done
	return out, err
}
