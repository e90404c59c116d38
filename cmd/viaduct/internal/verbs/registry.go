package verbs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/names"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/registry"
)

// registryCommand returns the verb registry: the list of the records of a registry.
func registryCommand(e *shell.Env) *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "registry ADDRESS [KIND [NAME]]",
		Short: "show the records of a registry of names",
		Long: `Show the records of a registry of names. ADDRESS is one of

  etcd://HOST[:PORT],.../PREFIX   an etcd cluster, port 2379, prefix viaduct;
                                  ?ca=FILE, cert=FILE and key=FILE for TLS,
                                  user=NAME with password-file=FILE
  file:PATH                       a file of lines KIND NAME VALUE
  dns:DOMAIN                      SRV records of _viaduct._tcp.NAME.KIND.DOMAIN,
                                  for a NAME, read only; dns://SERVER/DOMAIN
                                  asks that server

KIND is sdp (conventional and SDP addresses, for portmap serve --registry), vi
(hosts of the VI name service) or fabric (daemons of fabrics). Services register
with --registry ADDRESS --register NAME, under a lease that they renew. The
records of a dead service disappear when its lease expires. While the registry
is unreachable, the last known records are shown until their leases expire,
marked stale.`,
		Args: usageArgs(cobra.RangeArgs(1, 3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			reg, closeReg, err := names.Open(args[0], e.Log)
			if err != nil {
				return err
			}
			defer closeReg()
			kinds, name := []string{registry.Fabric, registry.PortMapper, registry.VI}, ""
			if len(args) > 1 {
				kinds = args[1:2]
			}
			if len(args) > 2 {
				name = args[2]
			}
			if watch && len(kinds) > 1 {
				return shell.Usagef("--watch wants a KIND")
			}
			if watch {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				var failed error // error of the output
				err := reg.Watch(ctx, kinds[0], name, func(a registry.Answer) {
					if failed = printAnswer(e, []registry.Answer{a}); failed != nil {
						cancel()
					}
				})
				return errors.Join(err, failed)
			}
			var as []registry.Answer
			for _, k := range kinds {
				one, stop := context.WithCancel(ctx)
				err := reg.Watch(one, k, name, func(a registry.Answer) { as = append(as, a); stop() })
				stop()
				if err != nil {
					return err
				}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if name != "" && len(as) == 1 && len(as[0].Records) == 0 {
				return fmt.Errorf("%w: %s %s", registry.ErrNotFound, kinds[0], name)
			}
			return printAnswer(e, as)
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show the records again after every change")
	return c
}

func printAnswer(e *shell.Env, as []registry.Answer) error {
	type row struct {
		Kind        string   `json:"kind"`
		Name        string   `json:"name"`
		Value       string   `json:"value"`
		SecondsLeft *float64 `json:"seconds_left,omitempty"` // nil if the record does not expire
		Stale       bool     `json:"stale"`
	}
	rows := []row{}
	text := [][]string{{"KIND", "NAME", "VALUE", "LEFT>", ""}}
	for _, a := range as {
		mark := ""
		if a.Stale {
			mark = "stale"
		}
		for _, r := range a.Records {
			w := row{Kind: r.Kind, Name: r.Name, Value: r.Value, Stale: a.Stale}
			left := "no end"
			if !r.Until.IsZero() {
				n := max(0, time.Until(r.Until).Round(time.Second/10).Seconds())
				w.SecondsLeft, left = &n, strconv.FormatFloat(n, 'f', 1, 64)+" s"
			}
			rows = append(rows, w)
			text = append(text, []string{r.Kind, r.Name, r.Value, left, mark})
		}
	}
	if e.JSON {
		return e.PrintEvent(rows)
	}
	e.Printf("%s", shell.Table(text))
	return nil
}
