package measure

import (
	"errors"
	"fmt"
	"maps"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

// looks is how often devices and queues are read before a sample says that they differ.
const looks = 3

// readDevices reads the devices and then the queues of TAPs, which are joined to them. The two are not of one moment, and the kernel's walk through all
// processes is not either: a queue that is opened, closed or handed over meanwhile can be missing from the one and not from the other. So where a TAP
// has other queues than were found, both are read again, unless the last sample ended with the same difference: some queues stay unaccounted for
// (io_uring's and vhost's alone), and are not to cost each sample three readings.
func (s *Sampler) readDevices(out *Sample) (linksErr, queuesErr error) {
	for look := 1; ; look++ {
		linksErr, queuesErr = s.readLinks(out), s.readQueues(out)
		if s.iter == nil || linksErr != nil || queuesErr != nil {
			return linksErr, queuesErr
		}
		differ := differences(out.Attachments)
		if len(differ) == 0 || look == looks || maps.Equal(differ, s.differ) {
			s.differ = differ
			return nil, nil
		}
	}
}

// differences are how many queues of TAPs were not found, where that is not 0; less than 0 where more were found than the TAP has.
func differences(all []*Attachment) map[watch.ID]int {
	differ := map[watch.ID]int{}
	for _, a := range all {
		if a.TAP == nil {
			continue
		}
		if n := a.TAP.Queues + a.TAP.Disabled - len(a.Queues); n != 0 {
			differ[a.ID] = n
		}
	}
	return differ
}

// readLinks reads every device of every attachment.
func (s *Sampler) readLinks(out *Sample) error {
	var refs []links.Ref
	var to []func(*links.Link)
	for _, a := range out.Attachments {
		a.TAP, a.Pod, a.Host = nil, nil, nil // of an earlier look
		for r, at := range map[watch.Role]**links.Link{watch.TAP: &a.TAP, watch.Pod: &a.Pod, watch.Host: &a.Host} {
			if ref, ok := a.Ref(r); ok {
				refs = append(refs, ref)
				to = append(to, func(l *links.Link) {
					if a.Owns(r, l) {
						*at = l
					}
				})
			}
		}
	}
	var errs []error
	err := s.conn.Read(refs, func(i int, l *links.Link, err error) {
		switch {
		case err == nil:
			to[i](l)
		case !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL): // gone since the picture, alone or with its namespace
			errs = append(errs, fmt.Errorf("%s: %w", refs[i], err))
		}
	})
	return errors.Join(err, few(errs))
}

// readQueues asks once for the open files of all processes. It comes after [Sampler.readLinks], which says which TAPs there are.
func (s *Sampler) readQueues(out *Sample) error {
	if s.iter == nil {
		return nil // the sample says why
	}
	all, err := s.iter.Read()
	if err != nil {
		return err
	}
	byIndex := map[int][]queueiter.Queue{}
	for _, q := range all {
		byIndex[q.Device.Index] = append(byIndex[q.Device.Index], q)
	}
	for _, a := range out.Attachments {
		a.Queues = nil // of an earlier look
		if a.TAP == nil {
			continue
		}
		for _, q := range byIndex[a.TAP.Index] {
			if q.Device.Name == a.TAP.Name { // ifindexes of tapir's own TAPs are unique on the node
				a.Queues = append(a.Queues, q)
			}
		}
	}
	return nil
}
