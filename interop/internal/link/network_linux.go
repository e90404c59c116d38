package link

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Network connects namespaces. Its methods may be called at any time by any
// goroutine.
type Network struct {
	mu       sync.Mutex
	ports    []*Port
	to       map[netip.Addr]*Port
	tracking bool
	tracker  tracker
	wg       sync.WaitGroup
}

// A Port is a network namespace with a TUN device of the Network.
type Port struct {
	net *Network
	ns  *os.File
	tun *os.File

	addr   netip.Addr // guarded by net.mu
	shaper shaper     // guarded by net.mu
	resets uint64     // guarded by net.mu

	mu      sync.Mutex
	waiting queue
	wake    chan struct{}
	over    chan struct{}
}

// New returns a network without ports.
func New() *Network {
	return &Network{to: map[netip.Addr]*Port{}, tracker: tracker{map[[2]netip.AddrPort]bool{}}}
}

// Device is the name of the device in each namespace.
const Device = "tun0"

// Add makes a namespace with a port at addr, an IPv4 address. All ports of a network are in one
// /24. The same seed gives the same random faults in each run.
func (n *Network) Add(addr netip.Addr, mtu int, seed uint64) (*Port, error) {
	p := &Port{net: n, addr: addr, wake: make(chan struct{}, 1), over: make(chan struct{})}
	p.shaper.r = rand.New(rand.NewPCG(seed, uint64(len(n.ports))))
	made := make(chan error, 1)
	go func() { // the thread enters the new namespace, and ends with the goroutine
		runtime.LockOSThread()
		made <- p.open(mtu)
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	if err := p.SetAddr(addr); err != nil {
		p.close()
		return nil, err
	}
	n.mu.Lock()
	n.ports = append(n.ports, p)
	n.mu.Unlock()
	n.wg.Go(p.read)
	n.wg.Go(p.deliver)
	return p, nil
}

// open creates the namespace and the device. Its thread must be locked, and remains in the
// namespace.
func (p *Port) open(mtu int) (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("a network namespace: %w", err)
	}
	if p.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(Device)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		unix.Close(fd)
		return fmt.Errorf("a TUN device: %w", err)
	}
	p.tun = os.NewFile(uintptr(fd), "tun")
	setNumber(unix.SIOCSIFTXQLEN, 10_000) // fails in a user namespace, where the default of 500 packets is enough
	return errors.Join(setFlags("lo", true), setNumber(unix.SIOCSIFMTU, mtu))
}

// setNumber sets a number of the device, such as the MTU, in the thread's namespace.
func setNumber(request uint, n int) error {
	return control(Device, request, func(r *unix.Ifreq) error { r.SetUint32(uint32(n)); return nil })
}

func setFlags(device string, up bool) error {
	var flags uint16
	if up {
		flags = unix.IFF_UP | unix.IFF_RUNNING
	}
	return control(device, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(flags); return nil })
}

func setAddr(request uint, a netip.Addr) error {
	b := a.As4()
	return control(Device, request, func(r *unix.Ifreq) error { return r.SetInet4Addr(b[:]) })
}

func control(device string, request uint, set func(*unix.Ifreq) error) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	if err := set(r); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, request, r); err != nil {
		return fmt.Errorf("device %s, request %#x: %w", device, request, err)
	}
	return nil
}

// Do calls f in a thread in the namespace of the port: sockets and files of /proc/sys/net opened by
// f, and processes started by f, belong to the namespace. Other goroutines started by f do not run
// in the namespace.
func (p *Port) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		if err := unix.Setns(int(p.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// SetAddr gives the port another address. Packets for the old address are lost.
func (p *Port) SetAddr(a netip.Addr) error {
	mask := netip.AddrFrom4([4]byte{255, 255, 255, 0})
	if err := p.Do(func() error {
		return errors.Join(setAddr(unix.SIOCSIFADDR, a), setAddr(unix.SIOCSIFNETMASK, mask), setFlags(Device, true))
	}); err != nil {
		return err
	}
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	delete(p.net.to, p.addr)
	p.addr = a
	p.net.to[a] = p
	return nil
}

// SetUp takes the device down or up. The system changes the routes accordingly.
func (p *Port) SetUp(up bool) error { return p.Do(func() error { return setFlags(Device, up) }) }

// Sysctl sets a value below /proc/sys/net in the namespace.
func (p *Port) Sysctl(name, value string) error {
	return p.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}

// SetFault replaces the fault of the port. It does not affect packets in flight.
func (p *Port) SetFault(f Fault) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.shaper.f = f
}

// Counters returns the counters of the packets sent by the port's namespace.
func (p *Port) Counters() Counters {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	c := p.shaper.counters
	c.Resets = p.resets
	return c
}

// Track starts connection tracking for TCP; call Track before there are connections. After Forget,
// the next packet of each connection is answered by a reset, as by a firewall that has lost its
// table.
func (n *Network) Track() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tracking = true
}

// Forget clears the connection table; see Track.
func (n *Network) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tracker.forget()
}

// read reads the packets sent by the namespace, until the port is closed.
func (p *Port) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := p.tun.Read(buf)
		if err != nil {
			if errors.Is(err, os.ErrClosed) {
				return
			}
			// The device is down, but may come up again.
			select {
			case <-p.over:
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		p.route(buf[:n])
	}
}

// route applies the fault to a packet, and writes the packet or queues it until due.
func (p *Port) route(b []byte) {
	if len(b) < headerEnd || b[0]>>4 != 4 {
		return // IPv6 is not routed
	}
	dst, _ := netip.AddrFromSlice(b[16:20])
	src, _ := netip.AddrFromSlice(b[12:16])
	now := time.Now()
	n := p.net
	n.mu.Lock()
	to := n.to[dst]
	if n.to[src] != p { // the source is a former address of the port
		to = nil
	}
	var arrivals []arrival
	if to != nil {
		if n.tracking {
			if pass, reset := n.tracker.allow(b); !pass {
				if reset != nil {
					p.resets++
				}
				n.mu.Unlock()
				if reset != nil {
					p.tun.Write(reset)
				}
				return
			}
		}
		arrivals = p.shaper.packet(now, flow(b), len(b))
	}
	n.mu.Unlock()
	for _, a := range arrivals {
		c := append([]byte(nil), b...)
		if a.flip >= 0 {
			c[a.flip/8] ^= 1 << (a.flip % 8)
		}
		if !a.at.After(now) {
			to.tun.Write(c) // a device that is down loses the packet
			continue
		}
		p.mu.Lock()
		heap.Push(&p.waiting, delayed{a.at, p.waiting.next, to, c})
		p.waiting.next++
		first := p.waiting.all[0].at.Equal(a.at)
		p.mu.Unlock()
		if first {
			select {
			case p.wake <- struct{}{}:
			default:
			}
		}
	}
}

// flow returns a different number for each TCP connection of two addresses, and 0 for other
// packets.
func flow(b []byte) uint32 {
	if head := int(b[0]&15) * 4; b[9] == protocolTCP && len(b) >= head+4 {
		return binary.BigEndian.Uint32(b[head:])
	}
	return 0
}

// deliver writes due queued packets, until the port is closed.
func (p *Port) deliver() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		wait := time.Hour
		for {
			p.mu.Lock()
			if len(p.waiting.all) == 0 {
				p.mu.Unlock()
				break
			}
			if wait = time.Until(p.waiting.all[0].at); wait > 0 {
				p.mu.Unlock()
				break
			}
			d := heap.Pop(&p.waiting).(delayed)
			p.mu.Unlock()
			wait = time.Hour
			d.to.tun.Write(d.packet)
		}
		t.Reset(wait)
		select {
		case <-p.over:
			return
		case <-p.wake:
		case <-t.C:
		}
	}
}

// A queue is a heap of packets by time of arrival. Packets of equal times are in the order of
// sending.
type queue struct {
	all  []delayed
	next uint64
}

type delayed struct {
	at     time.Time
	n      uint64
	to     *Port
	packet []byte
}

func (q *queue) Len() int { return len(q.all) }
func (q *queue) Less(i, j int) bool {
	a, b := q.all[i], q.all[j]
	return a.at.Before(b.at) || a.at.Equal(b.at) && a.n < b.n
}
func (q *queue) Swap(i, j int) { q.all[i], q.all[j] = q.all[j], q.all[i] }
func (q *queue) Push(x any)    { q.all = append(q.all, x.(delayed)) }
func (q *queue) Pop() any {
	d := q.all[len(q.all)-1]
	q.all[len(q.all)-1] = delayed{}
	q.all = q.all[:len(q.all)-1]
	return d
}

func (p *Port) close() error {
	close(p.over)
	return errors.Join(p.tun.Close(), p.ns.Close())
}

// Close ends the network and closes the ports. A namespace ends with its last process.
func (n *Network) Close() (err error) {
	n.mu.Lock()
	ports := n.ports
	n.ports = nil
	n.mu.Unlock()
	for _, p := range ports {
		err = errors.Join(err, p.close())
	}
	n.wg.Wait()
	return err
}
