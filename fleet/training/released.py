"""The weights of a released family as checkpoints, so that training can go on from them."""

from dataclasses import asdict
from pathlib import Path

from fleet.errors import InvalidInputError
from fleet.models.bundle import VOCABULARY
from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import save_checkpoint, save_tokenizer
from fleet.models.torch_model import CloudModel, load_image_tokenizer

CLOUD_START = "cloud.start.pt"


def unpack_release(cloud_folder: Path, work: Path) -> None:
    """Write `tokenizer.pt` and `cloud.start.pt` in `work` from a released cloud folder.

    The cloud stage begins with `cloud.start.pt` where there is no checkpoint of its own.

    Raises:
        InvalidInputError: The data stage built another vocabulary than the release's.
        BundleError: The folder does not hold a released cloud model.
    """
    released = CaptionVocabulary.load(cloud_folder / VOCABULARY)
    built = CaptionVocabulary.load(work / "vocabulary.json")
    if released != built:
        raise InvalidInputError(
            f"{cloud_folder} knows other caption words than {work}: its weights do not fit"
        )
    save_tokenizer(work / "tokenizer.pt", load_image_tokenizer(cloud_folder))
    model = CloudModel.load(cloud_folder).engine.transformer
    payload = {"config": asdict(model.config), "model": model.state_dict()}
    save_checkpoint(work / CLOUD_START, payload)
