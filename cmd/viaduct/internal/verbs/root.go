// Package verbs is the viaduct command. Each verb has a file.
package verbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/token"
	"viaduct/cmd/viaduct/internal/transport"
)

// Main runs the command of this process and returns the exit code.
func Main() int {
	e := shell.NewEnv()
	ctx, stop := interruptible()
	defer stop()
	return Run(ctx, e, os.Args[1:])
}

// interruptible returns a context the first SIGINT or SIGTERM cancels, with the cause
// ErrInterrupted. A second signal kills the process as usual.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-ch:
			signal.Stop(ch)
			cancel(shell.ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(ch); cancel(nil) }
}

// Run runs a command line, and returns the exit code.
func Run(ctx context.Context, e *shell.Env, args []string) int {
	e.Command = args
	root := newRoot(e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if cerr := e.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		return shell.ExitDone
	}
	if x, ok := errors.AsType[*shell.Exit](err); ok && x.Err == nil {
		return x.Code
	}
	if errors.Is(context.Cause(ctx), shell.ErrInterrupted) && !errors.Is(err, shell.ErrInterrupted) &&
		shell.ExitCode(err) != shell.ExitUsage {
		err = fmt.Errorf("%w (%w)", shell.ErrInterrupted, err)
	}
	verb := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "viaduct"), " ")
	if verb == "" {
		verb = "command"
	}
	if slices.ContainsFunc([]error{httpfile.ErrRefused, memsvc.ErrRefused, token.ErrMissing, token.ErrWrong}, func(e error) bool { return errors.Is(err, e) }) {
		err = shell.Hint(err, refusalHint(err))
	}
	if errors.Is(err, memsvc.ErrNotServed) || strings.Contains(err.Error(), "malformed HTTP") {
		err = shell.Hint(err, "check that the other side is viaduct serve")
	}
	if errors.Is(err, memsvc.ErrImpostor) {
		err = shell.Hint(err, "check the address, and that both sides have the same --token-file")
	}
	if errors.Is(err, memsvc.ErrTakenBack) {
		err = shell.Hint(err, "run it again when nothing writes to the file any more")
	}
	if e.JSON || shell.IsUsage(err) && wantsJSON(args) {
		e.PrintFailure(verb, err)
	}
	fmt.Fprintln(e.Stderr, shell.LastLine(verb, err))
	return shell.ExitCode(err)
}

// errPlainAtTLS is the answer of Go's HTTP server to a client without TLS.
var errPlainAtTLS = errors.New("HTTP request to an HTTPS server")

// refusalHint returns the remedy for a server's refusal. The reasons of packages store and token
// arrive as text.
func refusalHint(err error) string {
	if errors.Is(err, memsvc.ErrNoToken) {
		return "start the server with --token-file, or leave it out here"
	}
	for _, h := range []struct {
		reason error
		hint   string
	}{
		{token.ErrMissing, "give the token of the server by --token-file"},
		{token.ErrWrong, "--token-file must have the token of the server"},
		{store.ErrReadOnly, "start the server with --writable"},
		{errPlainAtTLS, "the server speaks TLS: give --tls"},
		{store.ErrDenied, "give the server's user the permission for that file"},
		{store.ErrNotFound, "check the path"},
		{store.ErrIsDir, "name a file in it"},
		{store.ErrTooLarge, "start the server with a larger --max-file"},
		{store.ErrNoSpace, "make room on the server's disk and run it again"},
		{store.ErrSum, "the file changed meanwhile or was damaged on the way: run it again"},
		{store.ErrShrank, "run it again when nothing writes to the file any more"},
	} {
		if strings.Contains(err.Error(), h.reason.Error()) {
			return h.hint
		}
	}
	return "check the path, and look at the server's log"
}

// wantsJSON reports whether a command line contains --json, even if the command line is invalid.
func wantsJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

// unknownVerb returns the error for an unknown command, with similar names.
func unknownVerb(cmd *cobra.Command, what, word string) error {
	cmd.SuggestionsMinimumDistance = 2
	var near []string
	for _, s := range cmd.SuggestionsFor(word) {
		if c, _, err := cmd.Find([]string{s}); err == nil && c.IsAvailableCommand() {
			near = append(near, s)
		}
	}
	if len(near) > 0 {
		return shell.Usagef("unknown %s %q, did you mean %s?", what, word, strings.Join(near, " or "))
	}
	return shell.Usagef("unknown %s %q", what, word)
}

// interruptGrace is how long an interrupted command waits for the orderly end of connections. The
// wait is bounded because a stopped peer does not answer.
const interruptGrace = 700 * time.Millisecond

// ending runs f, which ends connections, and waits for f, after the end of ctx for at most
// interruptGrace. Remaining connections end with the process.
func ending(ctx context.Context, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	t := time.NewTimer(interruptGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

func newRoot(e *shell.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "viaduct",
		Short: "RDMA over ordinary TCP, in user space",
		Long: `viaduct is RDMA over ordinary TCP, in user space. It needs no RDMA adapter, no
kernel module and no privileges. It is for those who

  - run or test programs that use libibverbs or librdmacm: "viaduct run --rdma"
    gives unmodified programs an emulated RDMA device
  - work on iWARP, SDP, VI/TCP or FC-VI: "viaduct decode" and "ladder" show
    captures, and "viaduct conform" tests an implementation
  - move files and messages by RDMA Write and RDMA Read: "viaduct serve", "get"
    and "put", "echo" and "ping"
  - try unmodified TCP programs over SDP: "viaduct run", "proxy"

It does not make a network faster: the processor copies each byte.

Addresses:
  vitcp://HOST[:PORT]/DISCRIMINATOR  a VI over TCP (port 3936)
  iwarp://HOST:PORT                  an RDMAP Stream (MPA, DDP, RDMAP)
  sdp://HOST:PORT                    a byte stream over SDP [?portmap=HOST[:PORT]]
  fcvi://HOST[:PORT]/DISCRIMINATOR   a VI over Fibre Channel in an FCIP link (port 3225)
  tcp://HOST:PORT                    plain TCP, the baseline
The path of a file comes last. With port 0, a listener picks a free port.
"viaduct help urls" lists the parameters of each address.

This build has: ` + strings.Join(transport.Names(), ", "),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(cmd, "verb", args[0])
			}
			return shell.Usagef("a verb is missing: %s", strings.Join(verbNames(cmd), ", "))
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := configure(cmd); err != nil {
				return err
			}
			if e.PcapFile != "" {
				if err := mayRecord(cmd); err != nil {
					return err
				}
			}
			return e.Open()
		},
	}
	f := root.PersistentFlags()
	f.BoolVar(&e.JSON, "json", false, "print JSON on stdout instead of text, a document on each line")
	f.StringVar(&e.LogLevel, "log-level", "warn", "log `LEVEL`: debug, info, warn or error")
	f.StringVar(&e.LogFormat, "log-format", "text", "log `FORMAT`: text or json")
	f.StringVar(&e.PcapFile, "pcap", "", "write what this process sends and receives to `FILE` as pcapng")
	f.StringVar(&e.MetricsAt, "metrics", "", "serve Prometheus metrics and pprof at `ADDR` (host:port)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return shell.Usage(flagError(err)) })
	root.SetUsageFunc(usage)
	helpAsJSON(e, root)
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	for _, c := range commands(e) {
		if c.Args == nil {
			c.Args = usageArgs(cobra.NoArgs)
		}
		root.AddCommand(c)
	}
	addConfig(root)
	root.AddCommand(urlsTopic(), completionCommand(e), manCommand(e))
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Short = "the help of a verb or of a topic"
		}
	}
	longTexts(root)
	addGroups(root)
	addExamples(root, examples())
	complete(root)
	return root
}

// unrecorded are the verbs whose --pcap would write an empty capture. bench is unrecorded because
// recording would change the measurements.
var unrecorded = []string{"bench", "registry", "decode", "ladder", "wireshark", "ps", "stat",
	"vipl", "config", "version", "completion", "man", "help"}

// mayRecord refuses --pcap for the unrecorded verbs.
func mayRecord(cmd *cobra.Command) error {
	for c := cmd; c.HasParent(); c = c.Parent() {
		switch verb := c.Name(); {
		case c.Parent().HasParent() || !slices.Contains(unrecorded, verb):
		case verb == "bench":
			return shell.Usagef("bench records nothing: a capture would change what it measures (record ping or get with --pcap, or use tcpdump with ?samehost=off)")
		default:
			return shell.Usagef("--pcap: %s has no connection to record", verb)
		}
	}
	return nil
}

func commands(e *shell.Env) []*cobra.Command {
	return []*cobra.Command{
		demoCommand(e), serveCommand(e), getCommand(e), putCommand(e), lsCommand(e), syncCommand(e),
		echoCommand(e), pingCommand(e), ncCommand(e), proxyCommand(e), nvmeCommand(e), runCommand(e),
		benchCommand(e), rpingCommand(e), fabricCommand(e), portmapCommand(e), registryCommand(e),
		decodeCommand(e), ladderCommand(e), wiresharkCommand(e), psCommand(e), statCommand(e),
		conformCommand(e), viplCommand(e), configCommand(e), versionCommand(e),
	}
}

func verbNames(root *cobra.Command) (names []string) {
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			names = append(names, c.Name())
		}
	}
	return names
}

// usageArgs wraps check so that the error shows the expected form.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err == nil || shell.IsUsage(err) {
			return err
		}
		got := "no argument"
		switch len(args) {
		case 0:
		case 1:
			got = fmt.Sprintf("the argument %q", args[0])
		default:
			got = fmt.Sprintf("%d arguments", len(args))
		}
		return shell.Usagef("got %s, want: %s", got, strings.Join(forms(cmd), " | "))
	}
}

// flagError describes the valid values of a flag, without the names of the functions that parse it.
func flagError(err error) error {
	v, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	want := ""
	switch f := v.GetFlag(); f.Value.Type() {
	case "duration":
		want = "a time such as 10s or 500ms"
	case "int", "uint8", "uint16", "uint64":
		if want = "a whole number"; errors.Is(err, strconv.ErrRange) {
			want = "in the range of this flag"
		}
	case "bool":
		want = "true or false"
	default:
		return err
	}
	return fmt.Errorf("--%s %q is not %s", v.GetFlag().Name, v.GetValue(), want)
}

// parse parses an address and finds the transport.
func parse(s string) (*addr.URL, *transport.Transport, error) {
	u, err := addr.Parse(s)
	if err != nil {
		return nil, nil, shell.Usage(err)
	}
	t, err := transport.For(u)
	return u, t, err
}

// noPath refuses an address with a path where no file is meant.
func noPath(u *addr.URL) error {
	if u.Path != "" {
		return shell.Usagef("address %q: a path means nothing here", u)
	}
	return nil
}

// parseAll parses addresses and finds their transports. An address with the path of a file is an
// error.
func parseAll(list []string) (us []*addr.URL, ts []*transport.Transport, err error) {
	for _, s := range list {
		u, t, err := parse(s)
		if err != nil {
			return nil, nil, err
		}
		if err := noPath(u); err != nil {
			return nil, nil, err
		}
		us, ts = append(us, u), append(ts, t)
	}
	return us, ts, nil
}

// A connFlags holds the common flags of verbs with connections.
type connFlags struct {
	tls        transport.TLSFlags
	dialTLS    bool // a verb that also listens uses TLS only to dial
	congestion string
	registry   string
	reach      reach

	token    string    // the file with the token; "" without one
	readable sync.Once // warns once that others on the network can read the token
}

// addToken adds --token, for verbs with file transfers.
func (c *connFlags) addToken(cmd *cobra.Command, about string) {
	cmd.Flags().StringVar(&c.token, "token-file", "", about)
}

func (c *connFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.tls.On, "tls", false, "use TLS: under vitcp and iwarp, inside the stream of sdp and tcp")
	f.StringVar(&c.tls.Cert, "tls-cert", "", "our certificate chain, PEM `FILE`")
	f.StringVar(&c.tls.Key, "tls-key", "", "the key of --tls-cert, PEM `FILE`")
	f.StringVar(&c.tls.CA, "tls-ca", "", "authorities the peer's certificate must come from, PEM `FILE`")
	f.StringVar(&c.tls.Pin, "tls-pin", "", "SHA-256 of the peer's certificate in `HEX`, instead of an authority")
	f.StringVar(&c.registry, "registry", "", "find hosts (vitcp, fcvi) and fabrics in the registry at `ADDRESS`")
	f.StringVar(&c.congestion, "congestion", "", "congestion control `ALGORITHM` of the sockets (Linux)")
}

// options returns the options of connections. listens is true if the verb accepts connections. TLS
// is an error for transports without TLS.
func (c *connFlags) options(e *shell.Env, listens bool, us ...*addr.URL) (*transport.Options, error) {
	if c.tls.Given() {
		for _, u := range us {
			if u.Scheme == "fcvi" {
				return nil, shell.Usagef("%s:// does not take TLS", u.Scheme)
			}
		}
	}
	if listens {
		if err := e.Inherit(); err != nil {
			return nil, err
		}
	}
	find, err := finder(e, c.registry)
	if err != nil {
		return nil, err
	}
	dial, listen, err := c.tls.Configs(e, listens && !c.dialTLS)
	if err != nil {
		return nil, err
	}
	o := &transport.Options{Env: e, TLSDial: dial, TLSListen: listen, Congestion: c.congestion,
		Find: find, Wait: c.reach.wait, MTU: 1 << 20, RecvCount: 16}
	if c.token != "" {
		if o.Token, err = token.Read(c.token); err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		if listens {
			e.OnHangup("token", func() error {
				t, err := token.Read(c.token)
				if err == nil {
					o.Token.Replace(t)
				}
				return err
			})
		}
		isHTTP := func(u *addr.URL) bool { return u.Scheme == "tcp" || u.Scheme == "sdp" }
		if i := slices.IndexFunc(us, isHTTP); i >= 0 && !c.tls.Given() {
			c.readable.Do(func() {
				e.Log.Warn("the token is readable on the way: --tls hides it", "transport", us[i].Scheme)
			})
		}
	}
	return o, nil
}
