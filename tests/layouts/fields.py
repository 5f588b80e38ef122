"""Weather, fluids, particles, molecules, stars and earthquakes."""

import h5py
import numpy as np
import pandas as pd
import xarray

from tests.layouts.kit import Want, layout, numbers, put


@layout("ERA5", "warned", "decode_cf=True")
def era5(folder):
    time = pd.date_range("2020-01-01", periods=4, freq="6h")
    t2m = numbers(4, 3, 5) * 0.5 + 270
    data = xarray.Dataset(
        {"t2m": (("time", "latitude", "longitude"), t2m)},
        {"time": time, "latitude": np.arange(3.0), "longitude": np.arange(5.0)},
    )
    packed = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 270.0, "_FillValue": -32767}
    data.to_netcdf(folder / "era5.nc", engine="h5netcdf", encoding={"t2m": packed})
    return Want(4, {"t2m": (2, t2m[2]), "time": (1, time.values[1])})


@layout("CF times beside values", "warned", "decode_cf=True")
def cf_times(folder):
    time = pd.date_range("2020-01-01", periods=4, freq="D")
    flow = xarray.Dataset({"flow": ("time", numbers(4))}, {"time": time})
    flow.to_netcdf(folder / "a.nc", engine="h5netcdf")
    return Want(4, {"flow": (2, np.float32(2)), "time": (3, time.values[3])})


@layout("The Well", "refused", "rows=ray_h5.Grid(2)")
def the_well(folder):
    fields = {"t0_fields/density": (2, 5, 8, 4), "t1_fields/velocity": (2, 5, 8, 4, 2)}
    axes = {"dimensions/time": (5,), "dimensions/x": (8,), "dimensions/y": (4,)}
    others = {"scalars/gamma": 1.5, "boundary_conditions/x_periodic/mask": np.ones(8, bool)}
    put(folder / "a.hdf5", fields | axes | others, n_trajectories=2)
    return Want(10, {"t0_fields/density": (6, numbers(2, 5, 8, 4)[1, 1])})


@layout("PDEBench, 1-D", "refused", "columns=['tensor']")
def pdebench_1d(folder):
    put(folder / "a.hdf5", {"tensor": (6, 5, 8), "t-coordinate": (6 + 1,), "x-coordinate": (8,)})
    return Want(6, {"tensor": (2, numbers(6, 5, 8)[2])})


@layout("PDEBench, 2-D: a simulation a group", "refused", "rows=ray_h5.Groups('*')")
def pdebench_2d(folder):
    for i in range(4):
        simulation = {"data": numbers(5, 8, 8, 1, start=i), "grid/t": (5,), "grid/x": (8,), "grid/y": (8,)}
        put(folder / "a.h5", simulation, below=f"{i:04d}")
    return Want(4, {"data": (3, numbers(5, 8, 8, 1, start=3))})


@layout("DeepCAM", "warned", "rows=ray_h5.Files()")
def deepcam(folder):
    for i in range(3):
        climate = {"data": numbers(48, 72, 16, start=i), "labels_0": np.zeros((48, 72), "i4")}
        put(folder / f"data-2000-0{i}.h5", climate, below="climate")
    return Want(3, {"climate/data": (2, numbers(48, 72, 16, start=2))})


@layout("GWOSC", "refused", "columns=['strain/Strain']")
def gwosc(folder):
    quality = {"simple/DQmask": np.ones(4, int), "injections/Injmask": np.ones(4, int)}
    put(folder / "H-H1.hdf5", quality | {"simple/DQShortnames": np.array([b"DATA", b"CBC"])}, below="quality")
    put(folder / "H-H1.hdf5", {"strain/Strain": (4096,), "meta/GPSstart": 1126259447, "meta/Detector": "H1"})
    with h5py.File(folder / "H-H1.hdf5", "a") as file:
        file["strain/Strain"].attrs.update({"Xspacing": 1 / 1024, "Xstart": 1126259447})
    return Want(4096, {"strain/Strain": (7, np.float32(7))})


@layout("STEAD: a trace a dataset", "warned", "rows=ray_h5.Groups('data/*_EV')")
def stead(folder):
    with h5py.File(folder / "merge.hdf5", "w") as file:
        for i, station in enumerate(("B082.TA", "109C.TA", "AAM.US", "PHL.CI", "R33.XO", "MEM2.NM")):
            trace = file.create_dataset(f"data/{station}_2010060404{i:02d}_EV", data=numbers(60, 3, start=i))
            trace.attrs["p_arrival_sample"], trace.attrs["trace_category"] = 10.0 + i, "earthquake_local"
    return Want(6, {"value": (0, numbers(60, 3, start=1))})


@layout("earthquakes: an event a group, with attributes", "warned", "rows=ray_h5.Groups('*/*')")
def events(folder):
    with h5py.File(folder / "waveforms.h5", "w") as file:
        for i, event in enumerate(("nc71111584", "nc71112909", "us7000abcd")):
            for station in ("BK.BDM", "NC.MCB", "CI.PASC")[: 2 + i % 2]:
                trace = file.create_dataset(f"{event}/{station}", data=numbers(3, 50 + i, start=i))
                trace.attrs["phase_index"] = 20
            file[event].attrs["magnitude"] = 2.5
    return Want(7, {"value": (0, numbers(3, 50))})


@layout("SeisBench: buckets", "refused")
def seisbench(folder):
    for i, n in enumerate((4, 3, 4)):
        put(folder / "waveforms.hdf5", {f"data/bucket{i}": numbers(n, 3, 20, start=i)})
    put(folder / "waveforms.hdf5", {"data_format/component_order": "ZNE", "data_format/sampling_rate": 100.0})
    return Want(11, {"data/bucket": (4, numbers(3, 3, 20, start=1)[0])})


@layout("JetClass-like tables")
def jets(folder):
    tables = np.zeros(9, [("pt", "f4"), ("eta", "f4"), ("label", "i4")])
    tables["pt"] = numbers(9)
    put(folder / "a.h5", {"jets": tables, "tracks": np.zeros((9, 4), [("d0", "f4"), ("valid", "?")])})
    return Want(9, {"jets": (3, tables[3])})


@layout("top tagging: a table of pandas", "right")
def top_tagging(folder):
    frame = pd.DataFrame({"E_0": numbers(9), "PX_0": numbers(9, start=1), "is_signal_new": np.arange(9) % 2})
    frame.to_hdf(folder / "val.h5", key="table", format="table")
    return Want(9, {"table/E_0": (3, np.float32(3)), "table/is_signal_new": (3, 1)})


@layout("ANI-1x: a formula a group", "refused", "rows=ray_h5.Groups('*')")
def ani(folder):
    for i, formula in enumerate(("C1H4", "C2H6", "C2H6O1", "C3N1O1H3", "H2O1", "N2H4")):
        molecule = {"atomic_numbers": np.ones(3 + i, "u1"), "coordinates": (4 + i, 3 + i, 3)}
        put(folder / "ani1x.h5", molecule | {"wb97x_dz.energy": (4 + i,)}, below=formula)
    return Want(6, {"coordinates": (1, numbers(5, 4, 3))})


@layout("ANI-1: molecules two groups deep", "refused", "rows=ray_h5.Groups('gdb11_s*/gdb11_s*')")
def ani1(folder):
    for size in ("01", "02"):
        for i in range(3):
            molecule = {"coordinates": numbers(4 + i, 5, 3, start=i), "energies": (4 + i,)}
            molecule["species"] = np.array([b"C", b"H", b"H", b"H", b"H"])
            put(folder / "ani.h5", molecule, below=f"gdb11_s{size}/gdb11_s{size}-{i}")
    return Want(6, {"energies": (4, numbers(5))})


@layout("SPICE", "refused", "rows=ray_h5.Groups('*')")
def spice(folder):
    for i, name in enumerate(("ala-ala", "103147721", "water dimer", "gly-trp", "Lithium Chloride", "98")):
        molecule = {"atomic_numbers": np.ones(3 + i, "i2"), "conformations": (2 + i, 3 + i, 3)}
        molecule |= {"dft_total_energy": numbers(2 + i, dtype="f8"), "smiles": np.array(["C"], object)}
        put(folder / "SPICE.hdf5", molecule, below=name)
    return Want(6, {"dft_total_energy": (0, numbers(7, dtype="f8"))})


@layout("QM7-X: conformers of molecules", "refused", "rows=ray_h5.Groups('*/Geom-m*-opt')")
def qm7x(folder):
    for n in range(1, 4):
        for i in range(1, 4):
            conformer = {"atXYZ": numbers(4 + n, 3, start=i), "atNUM": np.ones(4 + n, int), "ePBE0": (1,)}
            put(folder / "1000.hdf5", conformer, below=f"{n}/Geom-m{n}-i1-c{i}-opt")
    return Want(9, {"atXYZ": (3, numbers(6, 3, start=1))})


@layout("MD17-like: one molecule")
def md17(folder):
    put(folder / "aspirin.h5", {"R": (7, 5, 3), "F": (7, 5, 3), "E": (7, 1)})
    return Want(7, {"R": (2, numbers(7, 5, 3)[2])})


@layout("calorimeter showers")
def showers(folder):
    put(folder / "a.hdf5", {"incident_energies": (6, 1), "showers": (6, 12)})
    return Want(6, {"showers": (2, numbers(6, 12)[2])})


@layout("galaxy10")
def galaxy10(folder):
    galaxies = {
        "images": (6, 8, 8, 3),
        "ans": np.arange(6),
        **dict.fromkeys(("ra", "dec", "redshift", "pxscale"), (6,)),
    }
    put(folder / "Galaxy10_DECals.h5", galaxies)
    return Want(6, {"images": (2, numbers(6, 8, 8, 3)[2])})


@layout("spectra: a galaxy a file", "refused", "rows=ray_h5.Files()")
def spectra(folder):
    for i in range(3):
        spectrum = {"flux": numbers(30 + i, start=i), "wave": (30 + i,), "lines": (3,), "redshift": 0.1 * i}
        put(folder / f"spec_{i}.h5", spectrum)
    return Want(3, {"flux": (1, numbers(31, start=1))})


@layout("events of a camera", "refused", "rows=ray_h5.Files()")
def event_camera(folder):
    for i in range(2):
        seen = {"x": numbers(20 + i, start=i), "y": (20 + i,), "t": (20 + i,), "p": np.ones(20 + i, bool)}
        put(folder / f"rec_{i}.h5", seen, below="events")
        put(folder / f"rec_{i}.h5", {"ms_to_idx": np.arange(5)})
    return Want(2, {"events/x": (1, numbers(21, start=1))})


@layout("XDMF: a function at several times", "refused", "rows=ray_h5.Groups('Function/u/*')")
def xdmf(folder):
    put(folder / "a.h5", {f"Function/u/{i}": numbers(30, 2, start=i) for i in range(5)})
    put(folder / "a.h5", {"Mesh/mesh/geometry": (30, 2), "Mesh/mesh/topology": np.zeros((44, 3), int)})
    return Want(5, {"value": (2, numbers(30, 2, start=2))})


@layout("openPMD: iterations", "refused", "rows=ray_h5.Groups('data/*')")
def open_pmd(folder):
    for step in (0, 100, 200):
        put(folder / "a.h5", dict.fromkeys("xyz", (8, 9)), below=f"data/{step}/fields/E")
        put(folder / "a.h5", {"position/x": (40 + step,), "w": (40 + step,)}, below=f"data/{step}/particles/electrons")
    return Want(3, {"particles/electrons/position/x": (1, numbers(140))})


@layout("CAMELS: a basin a group", "refused", "rows=ray_h5.Groups('*')")
def camels(folder):
    for i, name in enumerate(("01013500", "01022500", "01030500")):
        basin = {"streamflow": numbers(365, start=i), "forcings": (365, 5), "attributes": (27,)}
        put(folder / "a.h5", basin, below=name)
    return Want(3, {"streamflow": (1, numbers(365, start=1))})


@layout("IMERG: a half hour a file", "refused", "columns=['Grid/precipitation', 'Grid/time', 'Grid/time_bnds']")
def imerg(folder):
    for i in range(3):
        grid = {"precipitation": numbers(1, 12, 9, start=i), "lon": (12,), "lat": (9,)}
        grid |= {"time": np.zeros(1, "i4"), "time_bnds": np.zeros((1, 2), "i4")}
        put(folder / f"3B-HHR.{i}.h5", grid, below="Grid")
    return Want(3, {"Grid/precipitation": (1, numbers(12, 9, start=1))})


@layout("mdCATH: replicas of temperatures", "refused", "rows=ray_h5.Groups('1a02F00/*/*')")
def mdcath(folder):
    for temperature in ("320", "348", "379"):
        for i in range(2):
            replica = {"coords": numbers(6 + i, 15, 3, start=int(temperature)), "rmsd": (6 + i,), "box": (3, 3)}
            put(folder / "mdcath.h5", replica, below=f"1a02F00/{temperature}/{i}")
    put(folder / "mdcath.h5", {"1a02F00/z": np.ones(15, int), "1a02F00/resid": np.ones(15, int)})
    return Want(6, {"coords": (2, numbers(6, 15, 3, start=348))})
