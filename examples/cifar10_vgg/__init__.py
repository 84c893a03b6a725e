"""FedComm's job: VGG-5 and VGG-8 on CIFAR-10, or on a stand-in for it, averaged over silos."""
