package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type options struct {
	out, name, entrypoint, sbom, boms string
	platforms                         platforms
	labels                            labels
}

// epoch is the time of everything in the image: the same files are to give the same bytes.
var epoch = time.Unix(0, 0).UTC()

// By these annotations of the index containerd and kind know the image's name.
const (
	annotationName = "io.containerd.image.name"
	annotationRef  = "org.opencontainers.image.ref.name"
)

func (o *options) build() error {
	if o.boms != "" {
		if err := o.writeBOMs(); err != nil {
			return err
		}
		if o.out == "" {
			return nil
		}
	}
	index := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	for _, p := range o.platforms {
		platform, err := v1.ParsePlatform(p[0])
		if err != nil {
			return fmt.Errorf("platform %q: %w", p[0], err)
		}
		image, err := o.image(platform, p[1])
		if err != nil {
			return fmt.Errorf("platform %s: %w", p[0], err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	dir, err := os.MkdirTemp("", "tapir-image-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	_, tag, _ := strings.Cut(path.Base(o.name), ":")
	folder, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = folder.AppendIndex(index, layout.WithAnnotations(map[string]string{annotationName: o.name, annotationRef: tag}))
	if err != nil {
		return err
	}
	return archive(dir, o.out)
}

func (o *options) image(platform *v1.Platform, folder string) (v1.Image, error) {
	var content bytes.Buffer
	if err := o.writeLayer(&content, folder); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "image"}})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, o.config(image, platform))
}

func (o *options) config(image v1.Image, platform *v1.Platform) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil { // of an image in memory
		panic(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Variant = platform.OS, platform.Architecture, platform.Variant
	c.Created = v1.Time{Time: epoch}
	c.Config.Entrypoint = []string{o.entrypoint}
	c.Config.WorkingDir = "/"
	c.Config.Env = []string{"PATH=" + path.Dir(o.entrypoint)}
	c.Config.Labels = o.labels
	return c
}

// writeLayer writes the folder as a tar in the order of names, all files root's, and the SBOM behind them.
func (o *options) writeLayer(w io.Writer, folder string) error {
	t := tar.NewWriter(w)
	var programs []string
	err := filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, file)
		if err != nil || name == "." {
			return err
		}
		if d.Type().IsRegular() {
			programs = append(programs, file)
		}
		return addFile(t, name, file, d)
	})
	if err != nil {
		return err
	}
	if o.sbom != "" {
		data, err := bom(o.name, programs)
		if err != nil {
			return fmt.Errorf("SBOM: %w", err)
		}
		if err := addBytes(t, strings.TrimPrefix(path.Join(o.sbom, "sbom.cdx.json"), "/"), data); err != nil {
			return err
		}
	}
	return t.Close()
}

func addFile(t *tar.Writer, name, file string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: filepath.ToSlash(name), Mode: 0o755, ModTime: epoch, Format: tar.FormatUSTAR}
	switch {
	case d.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return t.WriteHeader(h)
	case !d.Type().IsRegular():
		return fmt.Errorf("%s: want a file or a folder, got %s", file, d.Type())
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if info.Mode()&0o111 == 0 {
		h.Mode = 0o644
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}

func addBytes(t *tar.Writer, name string, data []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: epoch, Format: tar.FormatUSTAR}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(data)
	return err
}

// writeBOMs puts the SBOM of each platform's programs beside the archive: the one that is in the image.
func (o *options) writeBOMs() error {
	for _, p := range o.platforms {
		platform, err := v1.ParsePlatform(p[0])
		if err != nil {
			return fmt.Errorf("platform %q: %w", p[0], err)
		}
		var programs []string
		err = filepath.WalkDir(p[1], func(file string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				programs = append(programs, file)
			}
			return err
		})
		if err != nil {
			return err
		}
		data, err := bom(o.name, programs)
		if err != nil {
			return fmt.Errorf("SBOM of platform %s: %w", p[0], err)
		}
		name, _, _ := strings.Cut(path.Base(o.name), ":")
		if err := os.WriteFile(filepath.Join(o.boms, name+"."+platform.Architecture+".cdx.json"), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// archive writes a folder as a tar, whole or not at all.
func archive(dir, out string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(out), filepath.Base(out)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	t := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		return addFile(t, name, file, d)
	})
	if err = errors.Join(err, t.Close()); err != nil {
		return err
	}
	if err = errors.Join(f.Chmod(0o644), f.Sync()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), out); err != nil {
		return err
	}
	return f.Close()
}
